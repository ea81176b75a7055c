"""Functions of journeys, shops, houses, customers and files."""

from __future__ import annotations

from typing import Final

from training.demo_models.tool_use import values as v
from training.demo_models.tool_use.declarations import (
    CITY,
    FLAG,
    INTEGER,
    NUMBER,
    OK,
    always,
    function,
    parameter,
    texts,
)
from training.demo_models.tool_use.functions import Function

BUSINESS: Final[tuple[Function, ...]] = (
    function(
        "find_recipe search_recipes get_recipe",
        ("Find a recipe.",),
        (
            parameter("dish name meal", "Which dish.", v.one_of(v.FOODS)),
            parameter("vegetarian is_vegetarian", "Without meat.", always, FLAG),
        ),
        (
            "Find a[vegetarian| vegetarian] recipe for {dish}.",
            "How do I cook {dish}?",
            "I want to make {dish}. Do you have a recipe[vegetarian| without meat]?",
        ),
    ),
    function(
        "search_products find_product product_search",
        ("Search a shop.", "Find products."),
        (
            parameter("product query item name", "What to look for.", v.product),
            parameter("max_price budget limit price", "Price at most.", v.whole(5, 900), NUMBER),
        ),
        (
            "Find a {product}[max_price| for less than {max_price}].",
            "I am looking for a {product}[max_price| under {max_price}].",
            "Show me a {product}[max_price| that costs at most {max_price}].",
        ),
        {"name": v.title, "price": v.decimal(3, 900)},
        ("I have found {name} for {price}.",),
    ),
    function(
        "add_to_cart cart_add put_in_cart",
        ("Put something into the cart.",),
        (
            parameter("product item article", "What.", v.product),
            parameter("quantity count amount", "How many.", v.whole(1, 12), INTEGER),
        ),
        ("Put {quantity} of the {product} into my cart.", "Add {quantity} pieces of {product} to the cart."),
        OK,
        ("I have put {quantity} of the {product} into your cart.",),
    ),
    function(
        "get_order_status track_order order_status",
        ("Status of an order.", "Where an order is."),
        (parameter("order order_id id number", "Number of the order.", v.identifier),),
        (
            "Where is my order {order}?",
            "What is the status of order {order}?",
            "Has {order} been shipped?",
            "Track {order}.",
        ),
        {"status": v.one_of(("shipped", "delivered", "waiting", "cancelled"))},
        ("Your order {order} is {status}.", "Order {order}: {status}."),
    ),
    function(
        "get_stock_price stock_price quote",
        ("Price of a share.",),
        (
            parameter(
                "symbol ticker company",
                "Symbol of the company.",
                v.one_of(("ACME", "ORCA", "NOVA", "ZETA", "KILO", "LUMO", "BOLT", "TERRA")),
            ),
        ),
        ("What is the price of {symbol}?", "How much is {symbol} stock?", "Quote for {symbol}, please."),
        {"price": v.decimal(1, 900)},
        ("{symbol} stands at {price}.",),
    ),
    function(
        "get_population population city_population",
        ("How many people live in a city.",),
        (CITY,),
        ("How many people live in {city}?", "What is the population of {city}?"),
        {"population": v.whole(1000, 9_000_000)},
        ("{city} has {population} inhabitants.",),
    ),
    function(
        "get_distance distance route_length",
        ("Distance between two cities.",),
        (
            parameter("origin from start", "First city.", v.city),
            parameter("destination to end", "Second city.", v.city),
        ),
        ("How far is it from {origin} to {destination}?", "What is the distance between {origin} and {destination}?"),
        {"kilometres": v.whole(5, 9000)},
        ("It is {kilometres} kilometres from {origin} to {destination}.",),
    ),
    function(
        "play_music play_song play",
        ("Play music.",),
        (
            parameter("song title track", "Title of the song.", v.title),
            parameter("artist by singer", "Who plays it.", v.full_name),
        ),
        ("Play {song}[artist| by {artist}].", "I want to hear {song}[artist| by {artist}].", "Put on {song}."),
        OK,
        ("Now playing {song}.",),
    ),
    function(
        "turn_on switch_on enable_device",
        ("Switch a device on.",),
        (
            parameter(
                "device name thing", "Which device.", v.one_of(("lamp", "heater", "fan", "radio", "television", "oven"))
            ),
            parameter(
                "room place where",
                "In which room.",
                v.one_of(("kitchen", "bedroom", "bathroom", "garage", "office", "hall")),
            ),
        ),
        (
            "Turn on the {device} in the {room}.",
            "Switch the {device} in the {room} on.",
            "The {device} in the {room} should be on.",
        ),
        OK,
        ("The {device} in the {room} is on.",),
    ),
    function(
        "set_temperature set_thermostat heat",
        ("Set the temperature of a room.",),
        (
            parameter(
                "room place", "Which room.", v.one_of(("kitchen", "bedroom", "bathroom", "living room", "office"))
            ),
            parameter("degrees temperature value", "Degrees Celsius.", v.whole(14, 28), NUMBER),
        ),
        ("Set the {room} to {degrees} degrees.", "Make it {degrees} degrees in the {room}."),
        OK,
        ("The {room} will have {degrees} degrees.",),
    ),
    function(
        "get_user find_user lookup_user get_customer",
        ("Find a user.", "Look a customer up."),
        (parameter("name user full_name", "Name of the user.", v.full_name),),
        (
            "Look up {name}.",
            "Find the user {name}.",
            "Do we have a customer called {name}?",
            "Show me the account of {name}.",
        ),
        {"email": v.email, "city": v.city},
        ("{name} lives in {city}. The address is {email}.",),
    ),
    function(
        "create_user register_user add_customer",
        ("Create a user.",),
        (
            parameter("name full_name", "Name.", v.full_name),
            parameter("email address mail", "Email address.", v.email),
            parameter("age years", "Age.", v.whole(18, 90), INTEGER),
        ),
        (
            "Create a user {name} with the email {email}[age| and the age {age}].",
            "Register {name}, {email}[age|, {age} years old].",
            "Add {name} as a customer, mail {email}.",
        ),
        {"id": v.identifier},
        ("The user {name} has the id {id}.",),
    ),
    function(
        "read_file open_file get_file",
        ("Read a file.",),
        (parameter("path file name filename", "Name of the file.", v.file_name),),
        ("Read {path}.", "What is in the file {path}?", "Open {path}, please.", "Show me {path}."),
    ),
    function(
        "delete_file remove_file",
        ("Delete a file.",),
        (parameter("path file name", "Name of the file.", v.file_name),),
        ("Delete {path}.", "Remove the file {path}.", "I do not need {path} any more, delete it."),
        OK,
        ("The file {path} is gone.",),
    ),
    function(
        "list_files find_files",
        ("List files by their names' ends.",),
        (parameter("extension ending type", "End of the names.", v.one_of(("txt", "csv", "pdf", "md", "py", "json"))),),
        ("List all {extension} files.", "Which {extension} files are there?"),
        {"files": v.several(v.file_name)},
        ("There are {files}.",),
    ),
    function(
        "define define_word dictionary get_definition",
        ("Look a word up in a dictionary.",),
        (parameter("word term", "The word.", v.one_of(v.NOUNS + v.ANIMALS)),),
        ("What does {word} mean?", "Define {word}.", "Look up the word {word}."),
    ),
    function(
        "get_news latest_news news",
        ("The latest news.",),
        (
            parameter("topic subject about", "About what.", v.one_of(v.TOPICS)),
            parameter("country region", "Of which country.", v.one_of(v.COUNTRIES)),
        ),
        ("What is new about {topic}[country| in {country}]?", "Give me news about {topic}[country| from {country}]."),
        {"headline": v.title},
        ("The latest headline is {headline}.",),
    ),
    function(
        "invite invite_people add_members",
        ("Invite people.",),
        (
            parameter("names people members", "Whom to invite.", v.several(v.first_name), texts()),
            parameter("date day when", "Date.", v.date),
        ),
        ("Invite {names} on {date}.", "Please invite {names} for {date}."),
        OK,
        ("I have invited {names} for {date}.",),
    ),
    function(
        "shopping_list add_to_shopping_list",
        ("Put things on the shopping list.",),
        (parameter("items things list", "What to buy.", v.several(v.one_of(v.FOODS + v.NOUNS)), texts()),),
        ("Put {items} on the shopping list.", "We need {items}.", "Add {items} to the shopping list."),
        OK,
        ("I have put {items} on the list.",),
    ),
)
