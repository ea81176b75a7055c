"""What arguments and fields are filled with: words, names, numbers, dates, drawn by a generator of random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

Draw = Callable[[Random], Any]
"""Draws a value as JSON has it."""


def words(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The words of a text, or what stands between separators."""
    return tuple(text.split(separator))


FIRST_NAMES: Final = words(
    "Anna Ben Clara David Emma Felix Grace Henry Ines Jonas Karla Liam Maria Noah Olga Peter Rosa Samuel Tina Victor "
    "Wendy Alice Bruno Carmen Daniel Elena Frank Gina Hugo Irene Jack Kate Leon Mia Nina Oscar Paula Robert Sofia Tom "
    "Ursula Walter Amir Bianca Chen Dmitri Esther Farid Hana Ivan Jamal Keiko Lena Mateo Nadia "
    "Omar Priya Ravi Sana Yuki"
)
LAST_NAMES: Final = words(
    "Smith Jones Berg Miller Novak Fischer Rossi Silva Kim Tanaka Garcia Lopez Brown Wilson "
    "Larsen Hansen Dubois Martin "
    "Petrov Singh Khan Ali Cohen Murphy Walker Young King Wright Scott Hill Green Adams Baker Nelson Carter Mitchell "
    "Turner Parker Collins Stewart Morris Cook Bell Reed Ward Cox Gray Price Bennett Wood Ross Hughes Long Foster"
)
CITIES: Final = words(
    "Oslo Paris London Berlin Madrid Rome Vienna Prague Lisbon Dublin Helsinki Stockholm "
    "Copenhagen Warsaw Athens Cairo "
    "Nairobi Lagos Tokyo Osaka Seoul Beijing Shanghai Mumbai Delhi Bangkok Hanoi Sydney Melbourne Toronto Montreal "
    "Chicago Boston Seattle Denver Dallas Miami Lima Quito Bogota Santiago Zurich Geneva Milan Naples Munich Hamburg "
    "Cologne Lyon Nice Bordeaux Porto Seville Valencia Krakow Budapest Istanbul Ankara Dubai Doha Manila Jakarta"
)
COUNTRIES: Final = words(
    "Norway France England Germany Spain Italy Austria Portugal Ireland Finland Sweden Denmark "
    "Poland Greece Egypt Kenya "
    "Nigeria Japan Korea China India Thailand Vietnam Australia Canada Brazil Peru Chile Mexico Turkey"
)
NOUNS: Final = words(
    "lamp chair table bottle bicycle camera phone laptop book jacket shoe cup clock mirror guitar piano tent backpack "
    "umbrella blanket pillow sofa desk shelf kettle toaster knife spoon plate candle carpet basket ladder hammer drill "
    "printer keyboard monitor speaker helmet scarf glove ring necklace wallet suitcase notebook pencil brush"
)
COLOURS: Final = words("red green blue black white yellow orange purple brown grey pink silver golden")
ADJECTIVES: Final = words(
    "small large old new heavy light cheap quiet bright soft wooden round modern simple strong clean warm cold dry fast"
)
ANIMALS: Final = words("dog cat horse rabbit parrot goat sheep cow pig duck hamster turtle lizard owl fox pony donkey")
FOODS: Final = words(
    "pizza soup salad pasta rice bread cheese sandwich omelette curry pancakes noodles burger "
    "tacos sushi pie lasagna stew"
)
JOBS: Final = words(
    "teacher nurse doctor engineer farmer baker painter writer lawyer pilot chef plumber carpenter gardener dentist "
    "librarian journalist driver architect musician scientist tailor butcher electrician"
)
LANGUAGES: Final = words("German French Spanish Italian Dutch Swedish English Japanese Russian Turkish Polish Greek")
CURRENCIES: Final = words("USD EUR GBP JPY CHF NOK SEK CAD AUD INR")
WEEKDAYS: Final = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS: Final = words("January February March April May June July August September October November December")
TASKS: Final = words(
    "buy milk|call the dentist|water the plants|pay the rent|send the report|clean the kitchen|"
    "book a table|feed the cat|"
    "pick up the parcel|write to grandma|renew the passport|walk the dog|fix the bicycle|prepare the slides|"
    "order new shoes|take out the trash|return the books|check the oven|study for the exam|wash the car",
    "|",
)
TOPICS: Final = words(
    "solar energy|the history of Rome|black holes|gardening|chess openings|electric cars|"
    "jazz music|the French revolution|"
    "healthy breakfast|machine learning|climate change|wild mushrooms|old castles|yoga for beginners|volcanoes|"
    "space travel|coffee beans|bird migration|stone bridges|the stock market|deep sea fish|folk dances",
    "|",
)
MESSAGES: Final = words(
    "I will be late|the meeting is over|see you at noon|dinner is ready|the train is delayed|happy birthday|"
    "please call me back|I have found the keys|we need more paper|the package has arrived|the door is open|"
    "thank you for your help|the report is done|let us meet tomorrow|I am on my way|the game starts soon",
    "|",
)
FILE_TYPES: Final = ("txt", "csv", "pdf", "md", "py", "json")
_SYLLABLES: Final = words(
    "ba be bo da de do fa fi ga go ka ke ki la le lo ma mi mo na ne no pa pe ra ri ro sa se ta ti to va vo za"
)
_ENDINGS: Final = ("", "", "n", "r", "l", "s", "x", "ck", "nd", "st")


def one_of(words: Sequence[Any]) -> Draw:
    """One of these."""
    return lambda choose: choose.choice(words)


def whole(low: int, high: int) -> Draw:
    """An integer from `low` to `high`."""
    return lambda choose: choose.randint(low, high)


def decimal(low: float, high: float, places: int = 2) -> Draw:
    """A number with `places` places or fewer, never an integer."""

    def draw(choose: Random) -> float:
        value = round(choose.uniform(low, high), places)
        return value if value != int(value) else value + 0.5

    return draw


def made_up_word(choose: Random) -> str:
    """A word of no language, such as "Tavoken": what cannot be known must be copied."""
    word = "".join(choose.choice(_SYLLABLES) for _ in range(choose.randint(2, 4))) + choose.choice(_ENDINGS)
    return word.capitalize()


def first_name(choose: Random) -> str:
    """A first name, at times one of no language."""
    return made_up_word(choose) if choose.random() < 0.25 else choose.choice(FIRST_NAMES)


def full_name(choose: Random) -> str:
    """First name and last name."""
    last = made_up_word(choose) if choose.random() < 0.2 else choose.choice(LAST_NAMES)
    return f"{first_name(choose)} {last}"


def city(choose: Random) -> str:
    """A city, at times one that does not exist."""
    if choose.random() < 0.25:
        return choose.choice(("", "", "New ", "San ", "Port ")) + made_up_word(choose)
    return choose.choice(CITIES)


def product(choose: Random) -> str:
    """A thing, perhaps with how it is."""
    kind = choose.random()
    noun = choose.choice(NOUNS)
    if kind < 0.4:
        return noun
    return f"{choose.choice(ADJECTIVES if kind < 0.7 else COLOURS)} {noun}"


def title(choose: Random) -> str:
    """A title of a book, a film or a song."""
    noun, other = choose.sample(NOUNS + ANIMALS, 2)
    patterns = ("The {a} {n}", "The {n} and the {o}", "A {n} in {c}", "{m}", "The {n} of {m}", "My {a} {n}")
    return choose.choice(patterns).format(
        a=choose.choice(ADJECTIVES).capitalize(),
        n=noun.capitalize(),
        o=other.capitalize(),
        c=choose.choice(CITIES),
        m=made_up_word(choose),
    )


def date(choose: Random) -> str:
    """As ISO 8601 writes dates."""
    return f"{choose.randint(2019, 2030)}-{choose.randint(1, 12):02d}-{choose.randint(1, 28):02d}"


def clock(choose: Random) -> str:
    """Hours and minutes."""
    return f"{choose.randint(0, 23):02d}:{choose.choice((0, 5, 10, 15, 20, 30, 40, 45, 50)):02d}"


def email(choose: Random) -> str:
    """An address."""
    name = first_name(choose).lower()
    host = choose.choice(("example.com", "example.org", "mail.example", f"{made_up_word(choose).lower()}.com"))
    return choose.choice((f"{name}@{host}", f"{name}.{choose.choice(LAST_NAMES).lower()}@{host}"))


def identifier(choose: Random) -> str:
    """A code of letters and digits."""
    letters = "".join(choose.choice("ABCDEFGHKLMNPRSTVX") for _ in range(choose.randint(1, 3)))
    return choose.choice((f"{letters}-{choose.randint(10, 99999)}", f"{letters}{choose.randint(10, 9999)}"))


def file_name(choose: Random) -> str:
    """A file."""
    stem = choose.choice((choose.choice(NOUNS), made_up_word(choose).lower(), "report", "notes", "data", "budget"))
    number = f"_{choose.randint(1, 99)}" if choose.random() < 0.33 else ""
    return f"{stem}{number}.{choose.choice(FILE_TYPES)}"


def several(draw: Draw, low: int = 2, high: int = 4) -> Draw:
    """A list of different values."""

    def draw_all(choose: Random) -> list[Any]:
        found: dict[Any, None] = {}
        for _ in range(choose.randint(low, high)):
            found[draw(choose)] = None
        return list(found)

    return draw_all


def spoken(value: Any) -> str:
    """A value as a sentence has it."""
    if isinstance(value, list):
        words = [spoken(each) for each in value]
        return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
    return str(value)
