"""Functions of everyday life: weather, messages, alarms, calendars, sums, words."""

from __future__ import annotations

from typing import Final

from training.demo_models.tool_use import values as v
from training.demo_models.tool_use.declarations import (
    CITY,
    CONDITIONS,
    DAY,
    INTEGER,
    NUMBER,
    OK,
    function,
    numbers,
    one_of_these,
    parameter,
)
from training.demo_models.tool_use.functions import Function

EVERYDAY: Final[tuple[Function, ...]] = (
    function(
        "get_weather current_weather weather fetch_weather get_current_weather",
        ("Get the current weather of a city.", "Returns weather for a place.", "Current temperature and conditions."),
        (
            CITY,
            parameter(
                "unit units",
                "Unit of temperature.",
                v.one_of(("celsius", "fahrenheit")),
                one_of_these("celsius", "fahrenheit"),
            ),
        ),
        (
            "What is the weather like in {city}[unit| in {unit}]?",
            "How is the weather in {city}?",
            "Weather in {city}[unit|, in {unit}]?",
            "Is it raining in {city}?",
            "How warm is it in {city} right now[unit|, in {unit}]?",
            "Tell me the weather in {city}, please.",
            "What's the weather in {city} today?",
            "Do I need a coat in {city}?",
            "Give me the temperature in {city}[unit| in {unit}].",
        ),
        {"temperature": v.whole(-15, 38), "condition": CONDITIONS},
        (
            "It is {condition} in {city}, with {temperature} degrees.",
            "The weather in {city} is {condition} and it is {temperature} degrees.",
        ),
    ),
    function(
        "get_forecast weather_forecast forecast",
        ("Weather forecast for a day.", "Get the forecast of a city."),
        (CITY, DAY),
        (
            "What will the weather be in {city} on {day}?",
            "Will it rain in {city} on {day}?",
            "Forecast for {city} on {day}, please.",
        ),
        {"high": v.whole(0, 38), "condition": CONDITIONS},
        ("On {day} it will be {condition} in {city}, up to {high} degrees.",),
    ),
    function(
        "get_time current_time world_clock get_local_time",
        ("Get the local time of a city.", "What time it is somewhere."),
        (CITY,),
        ("What time is it in {city}?", "Tell me the time in {city}.", "How late is it in {city} now?"),
        {"time": v.clock},
        ("It is {time} in {city}.", "The local time in {city} is {time}."),
    ),
    function(
        "send_email email write_email send_mail",
        ("Send an email.", "Sends a mail to somebody."),
        (
            parameter("to recipient address", "Address of the recipient.", v.email),
            parameter("subject title", "Subject line.", v.one_of(v.TOPICS)),
            parameter("body text message", "The text.", v.one_of(v.MESSAGES)),
        ),
        (
            "Send an email to {to} about {subject} that says {body}.",
            "Write to {to}, subject {subject}: {body}.",
            "Email {to} with the subject {subject} and the text {body}.",
        ),
        OK,
        ("I have sent the email to {to}.", "Your email to {to} is on its way."),
    ),
    function(
        "send_message text_message send_sms message_contact",
        ("Send a short message to a person.", "Text somebody."),
        (
            parameter("name contact recipient to", "Who gets it.", v.first_name),
            parameter("message text content", "What it says.", v.one_of(v.MESSAGES)),
        ),
        (
            "Tell {name} that {message}.",
            "Text {name}: {message}.",
            "Send {name} a message saying {message}.",
            "Let {name} know that {message}.",
        ),
        OK,
        ("I have told {name} that {message}.", "Done. {name} has your message."),
    ),
    function(
        "set_alarm create_alarm alarm",
        ("Set an alarm.",),
        (parameter("time at", "Time of the alarm.", v.clock), DAY),
        (
            "Wake me up at {time}[day| on {day}].",
            "Set an alarm for {time}[day| on {day}].",
            "I need an alarm at {time}.",
        ),
        OK,
        ("The alarm is set for {time}.", "I will wake you at {time}."),
    ),
    function(
        "set_timer start_timer timer",
        ("Start a timer.", "Countdown in minutes."),
        (parameter("minutes duration length", "Minutes.", v.whole(1, 120), INTEGER),),
        ("Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Remind me in {minutes} minutes."),
        OK,
        ("The timer runs for {minutes} minutes.",),
    ),
    function(
        "add_reminder create_reminder remind_me set_reminder",
        ("Add a reminder.", "Remind the user of something."),
        (
            parameter("task text what title", "What to remind of.", v.one_of(v.TASKS)),
            parameter("date day on", "Date.", v.date),
            parameter("time at", "Time.", v.clock),
        ),
        (
            "Remind me to {task} on {date}[time| at {time}].",
            "Add a reminder for {date}: {task}.",
            "I must {task} on {date}[time| at {time}], remind me.",
        ),
        OK,
        ("I will remind you to {task}.", "The reminder to {task} is set."),
    ),
    function(
        "add_task create_todo add_todo",
        ("Add an item to the to-do list.",),
        (
            parameter("task item title", "What is to be done.", v.one_of(v.TASKS)),
            parameter(
                "priority importance",
                "How urgent it is.",
                v.one_of(("low", "medium", "high")),
                one_of_these("low", "medium", "high"),
            ),
        ),
        (
            "Add {task} to my list[priority| with {priority} priority].",
            "Put {task} on my to-do list.",
            "New task: {task}[priority|, priority {priority}].",
        ),
        OK,
        ("I have put {task} on your list.",),
    ),
    function(
        "create_event schedule_meeting add_to_calendar",
        ("Create an event in the calendar.", "Schedule a meeting."),
        (
            parameter("name with person attendee", "Whom to meet.", v.full_name),
            parameter("date day", "Date.", v.date),
            parameter("time start at", "Beginning.", v.clock),
            parameter("minutes duration length", "Minutes.", v.one_of((15, 30, 45, 60, 90)), INTEGER),
        ),
        (
            "Schedule a meeting with {name} on {date} at {time}[minutes| for {minutes} minutes].",
            "Meet {name} on {date} at {time}.",
            "Put a meeting with {name} into my calendar, {date} at {time}[minutes|, {minutes} minutes].",
        ),
        OK,
        ("The meeting with {name} is on {date} at {time}.",),
    ),
    function(
        "search_web web_search search google",
        ("Search the web.", "Look something up."),
        (
            parameter("query q topic text", "What to search for.", v.one_of(v.TOPICS)),
            parameter("count limit max_results", "How many results.", v.whole(1, 20), INTEGER),
        ),
        (
            "Search the web for {query}.",
            "Find {count} pages about {query}.",
            "Look up {query}.",
            "What does the web say about {query}?",
            "Search for {query}[count|, {count} results].",
        ),
        {
            "title": v.title,
            "url": v.one_of(("https://example.com/a", "https://example.org/page", "https://example.net/1")),
        },
        ("I have found {title} at {url}.", "The first result is {title}."),
    ),
    function(
        "calculate calculator evaluate compute",
        ("Compute a sum.", "Evaluate arithmetic."),
        (
            parameter("a x first left", "First number.", v.whole(1, 999), NUMBER),
            parameter(
                "operation operator op",
                "What to do.",
                v.one_of(("plus", "minus", "times")),
                one_of_these("plus", "minus", "times", "over"),
            ),
            parameter("b y second right", "Second number.", v.whole(1, 999), NUMBER),
        ),
        ("What is {a} {operation} {b}?", "Calculate {a} {operation} {b}.", "How much is {a} {operation} {b}?"),
        {"result": v.whole(1, 99999)},
        ("The result is {result}.", "{a} {operation} {b} is {result}."),
    ),
    function(
        "add_numbers sum add total",
        ("Add numbers.", "The sum of a list of numbers."),
        (parameter("numbers values items", "What to add.", v.several(v.whole(1, 500), 2, 5), numbers()),),
        ("Add {numbers}.", "What is the sum of {numbers}?", "Sum up {numbers}."),
        {"sum": v.whole(10, 2000)},
        ("The sum is {sum}.",),
    ),
    function(
        "convert_currency exchange currency_converter",
        ("Convert money.", "Convert an amount between currencies."),
        (
            parameter("amount value sum", "How much.", v.whole(1, 5000), NUMBER),
            parameter("source from from_currency", "Currency of the amount.", v.one_of(v.CURRENCIES)),
            parameter("target to to_currency", "Currency wanted.", v.one_of(v.CURRENCIES)),
        ),
        (
            "Convert {amount} {source} to {target}.",
            "How much is {amount} {source} in {target}?",
            "I have {amount} {source}. What is that in {target}?",
        ),
        {"converted": v.decimal(1, 9000)},
        ("{amount} {source} are {converted} {target}.",),
    ),
    function(
        "convert_units unit_converter",
        ("Convert a length.",),
        (
            parameter("value amount number", "The number.", v.whole(1, 900), NUMBER),
            parameter(
                "source from from_unit",
                "Unit of the number.",
                v.one_of(("miles", "metres", "feet")),
                one_of_these("miles", "metres", "feet", "inches"),
            ),
            parameter(
                "target to to_unit",
                "Unit wanted.",
                v.one_of(("kilometres", "inches", "yards")),
                one_of_these("kilometres", "inches", "yards"),
            ),
        ),
        ("How many {target} are {value} {source}?", "Convert {value} {source} to {target}."),
        {"converted": v.decimal(1, 900)},
        ("{value} {source} are {converted} {target}.",),
    ),
    function(
        "translate translate_text translation",
        ("Translate a text.",),
        (
            parameter("text sentence content", "What to translate.", v.one_of(v.MESSAGES)),
            parameter("language target target_language to", "Language wanted.", v.one_of(v.LANGUAGES)),
        ),
        (
            'Translate "{text}" to {language}.',
            'How do you say "{text}" in {language}?',
            'Put "{text}" into {language}, please.',
        ),
    ),
    function(
        "book_flight find_flights search_flights",
        ("Search for flights.", "Book a flight."),
        (
            parameter("origin from departure source", "Where it starts.", v.city),
            parameter("destination to arrival target", "Where it goes.", v.city),
            parameter("date day departure_date", "Date.", v.date),
            parameter("passengers people seats", "How many travel.", v.whole(1, 6), INTEGER),
        ),
        (
            "Book a flight from {origin} to {destination} on {date}[passengers| for {passengers} people].",
            "Find flights from {origin} to {destination} on {date}.",
            "I want to fly from {origin} to {destination} on {date}.",
        ),
        {"flight": v.identifier, "price": v.whole(40, 1500)},
        ("Flight {flight} from {origin} to {destination} costs {price}.",),
    ),
    function(
        "book_hotel find_hotel reserve_room",
        ("Book a room in a hotel.",),
        (
            CITY,
            parameter("nights duration days", "How many nights.", v.whole(1, 14), INTEGER),
            parameter("guests people persons", "How many guests.", v.whole(1, 6), INTEGER),
        ),
        (
            "Book a hotel in {city} for {nights} nights[guests| and {guests} guests].",
            "I need a room in {city} for {nights} nights[guests|, {guests} people].",
        ),
        {"hotel": v.title, "price": v.whole(50, 900)},
        ("I have booked {hotel} in {city} for {nights} nights.",),
    ),
    function(
        "order_food place_order order_meal",
        ("Order food.", "Order a meal."),
        (
            parameter("dish item meal food", "What to order.", v.one_of(v.FOODS)),
            parameter("quantity count number", "How many.", v.whole(1, 9), INTEGER),
        ),
        (
            "Order {quantity} portions of {dish}.",
            "I would like {quantity} times {dish}.",
            "Please order {dish} for {quantity} people.",
        ),
        {"minutes": v.whole(10, 90)},
        ("Your {dish} will arrive in {minutes} minutes.",),
    ),
)
