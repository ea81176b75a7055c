"""Things that a sentence tells of and a JSON object holds: kinds of records, their schemas, and texts made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from training.demo_models.tool_use import values as v


@dataclass(frozen=True, slots=True)
class Field:
    """names: what a schema may call it. phrases: what tells of it, behind the record's subject."""

    names: tuple[str, ...]
    draw: v.Draw
    phrases: tuple[str, ...]
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Kind:
    """names: of the kind, as titles of schemas and in requests. subject: the field that sentences begin with.

    openings: what comes before the first phrase, with a place for the subject.
    """

    names: tuple[str, ...]
    subject: Field
    openings: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Extract:
    """A text, the object that it tells of, and the object's schema."""

    kind: str
    text: str
    value: dict[str, Any]
    schema: dict[str, Any]


def _s(names: str, draw: v.Draw, *phrases: str) -> Field:
    return Field(tuple(names.split()), draw, phrases)


def _i(names: str, draw: v.Draw, *phrases: str) -> Field:
    return Field(tuple(names.split()), draw, phrases, {"type": "integer"})


def _n(names: str, draw: v.Draw, *phrases: str) -> Field:
    return Field(tuple(names.split()), draw, phrases, {"type": "number"})


def _e(names: str, options: tuple[str, ...], *phrases: str) -> Field:
    return Field(tuple(names.split()), v.one_of(options), phrases, {"type": "string", "enum": list(options)})


def _l(names: str, draw: v.Draw, *phrases: str) -> Field:
    return Field(tuple(names.split()), v.several(draw), phrases, {"type": "array", "items": {"type": "string"}})


KINDS: Final = (
    Kind(
        ("Person", "User", "Employee", "Contact"),
        _s("name full_name", v.full_name),
        ("{}", "My friend {}", "A person called {}"),
        (
            _i("age years", v.whole(6, 95), "is {} years old", "has turned {}"),
            _s("city town place home residence", v.city, "lives in {}", "comes from {}", "is at home in {}"),
            _s("job profession occupation", v.one_of(v.JOBS), "works as a {}", "is a {} by profession"),
            _s("email mail", v.email, "can be reached at {}", "has the email address {}"),
            _s("pet animal", v.one_of(v.ANIMALS), "has a {}", "owns a {}"),
            _l("languages", v.one_of(v.LANGUAGES), "speaks {}"),
            _s("country", v.one_of(v.COUNTRIES), "was born in {}", "grew up in {}"),
            _l("hobbies interests", v.one_of(v.TOPICS), "is interested in {}", "likes {}"),
        ),
    ),
    Kind(
        ("Event", "Meeting", "CalendarEvent", "Appointment"),
        _s("title name event", v.title),
        ("The event {}", "{}", "The meeting called {}"),
        (
            _s("date day", v.date, "takes place on {}", "is on {}"),
            _s("time start", v.clock, "starts at {}", "begins at {}"),
            _s("city place location", v.city, "is held in {}", "happens in {}"),
            _i("guests participants people", v.whole(2, 500), "has {} guests", "expects {} people"),
            _l("speakers participants people names", v.first_name, "has talks by {}", "will be visited by {}"),
        ),
    ),
    Kind(
        ("Product", "Item", "Article"),
        _s("name product title", v.product),
        ("The {}", "Our {}", "This {}"),
        (
            _n("price cost", v.decimal(1, 900), "costs {}", "is sold for {} euros"),
            _s("colour color", v.one_of(v.COLOURS), "is {}", "comes in {}"),
            _i("stock quantity available", v.whole(0, 500), "is in stock {} times", "is available {} times"),
            _s("id code sku", v.identifier, "has the number {}", "is listed as {}"),
            _e("size", ("small", "medium", "large"), "comes in size {}"),
            _n("weight", v.decimal(0.1, 40), "weighs {} kg"),
        ),
    ),
    Kind(
        ("Book", "Novel", "Publication"),
        _s("title name book", v.title),
        ("The book {}", "{}", "The novel {}"),
        (
            _s("author writer", v.full_name, "was written by {}", "is by {}"),
            _i("year published", v.whole(1800, 2026), "came out in {}", "was published in {}"),
            _i("pages length", v.whole(60, 1200), "has {} pages"),
            _s("language", v.one_of(v.LANGUAGES), "is written in {}"),
            _n("rating score", v.decimal(1, 5, 1), "is rated {}"),
        ),
    ),
    Kind(
        ("Booking", "Reservation", "Trip"),
        _s("name guest customer passenger", v.full_name),
        ("{}", "The customer {}", "Our guest {}"),
        (
            _s("destination city to", v.city, "travels to {}", "wants to go to {}"),
            _s("date day", v.date, "leaves on {}", "starts on {}"),
            _i("nights days", v.whole(1, 30), "stays for {} nights"),
            _i("guests people passengers", v.whole(1, 8), "brings {} people"),
            _n("price cost total", v.decimal(50, 3000), "pays {} euros"),
        ),
    ),
    Kind(
        ("Order", "Purchase", "Invoice"),
        _s("id order number order_id", v.identifier),
        ("Order {}", "The order {}", "Invoice {}"),
        (
            _s("customer name buyer", v.full_name, "was placed by {}", "belongs to {}"),
            _n("total amount price", v.decimal(5, 4000), "comes to {} euros", "amounts to {}"),
            _e("status state", ("open", "paid", "shipped", "cancelled"), "is {}"),
            _s("date day", v.date, "was made on {}", "is of {}"),
            _l("items products articles", v.product, "has {}", "contains {}"),
            _s("city address", v.city, "goes to {}"),
        ),
    ),
    Kind(
        ("City", "Place", "Location"),
        _s("name city", v.city),
        ("{}", "The city of {}"),
        (
            _s("country", v.one_of(v.COUNTRIES), "lies in {}", "is a city in {}"),
            _i("population inhabitants", v.whole(900, 9_000_000), "has {} inhabitants"),
            _i("degrees temperature", v.whole(-20, 40), "has {} degrees today", "is at {} degrees"),
            _e("weather condition", ("sunny", "cloudy", "rainy", "windy"), "is {}"),
            _s("mayor", v.full_name, "has {} as its mayor"),
        ),
    ),
    Kind(
        ("Animal", "Pet"),
        _s("name", v.first_name),
        ("{}", "Our pet {}", "The animal called {}"),
        (
            _s("species kind animal", v.one_of(v.ANIMALS), "is a {}"),
            _i("age years", v.whole(1, 25), "is {} years old"),
            _s("colour color", v.one_of(v.COLOURS), "is {}"),
            _s("owner", v.full_name, "belongs to {}"),
            _n("weight", v.decimal(0.2, 60, 1), "weighs {} kg"),
        ),
    ),
    Kind(
        ("Song", "Track", "Recording"),
        _s("title song name", v.title),
        ("The song {}", "{}"),
        (
            _s("artist singer musician", v.full_name, "is sung by {}", "was recorded by {}"),
            _i("year", v.whole(1930, 2026), "is from {}"),
            _i("seconds length duration", v.whole(60, 600), "lasts {} seconds"),
            _s("genre style", v.one_of(("jazz", "rock", "pop", "folk", "blues", "soul")), "is a piece of {}"),
        ),
    ),
    Kind(
        ("Movie", "Film"),
        _s("title name film", v.title),
        ("The film {}", "The movie {}"),
        (
            _s("director", v.full_name, "was directed by {}"),
            _i("year", v.whole(1930, 2026), "was shown first in {}", "is from {}"),
            _i("minutes length duration", v.whole(60, 200), "runs for {} minutes"),
            _n("rating score", v.decimal(1, 10, 1), "has a rating of {}"),
            _l("actors cast", v.full_name, "stars {}"),
        ),
    ),
)
HELD_OUT_KINDS: Final = KINDS[-2:]
"""Kinds of records that are never trained on."""

TRAINED_KINDS: Final = KINDS[:-2]

_PRONOUNS: Final = {"Person": ("They", "This person"), "Animal": ("It", "The animal"), "Booking": ("They", "The guest")}
_OPINIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "positive": (
        "I love this {}.",
        "The {} is wonderful.",
        "What a great {}!",
        "This {} works perfectly.",
        "I am very happy with the {}.",
    ),
    "negative": (
        "I hate this {}.",
        "The {} is terrible.",
        "The {} broke after a day.",
        "What a bad {}!",
        "I want my money back for the {}.",
    ),
    "neutral": ("I have bought a {}.", "This is a {}.", "The {} is on the table.", "The {} came on Monday."),
}


def extract(kind: Kind, choose: Random, least: int = 1, most: int = 4) -> Extract:
    """A text about one record of a kind, told in the order of the schema or another."""
    fields = choose.sample(kind.fields, min(len(kind.fields), choose.randint(least, most)))
    chosen = [(kind.subject, kind.subject.draw(choose))] + [(each, each.draw(choose)) for each in fields]
    text = _told(kind, chosen, choose)
    if choose.random() < 0.4:
        choose.shuffle(chosen)
    keys = _keys([each for each, _ in chosen], choose)
    value = {key: found for key, (_, found) in zip(keys, chosen, strict=True)}
    properties = {key: dict(each.schema) for key, (each, _) in zip(keys, chosen, strict=True)}
    return Extract(choose.choice(kind.names), text, value, schema_of(properties, choose))


def extracts(kind: Kind, choose: Random) -> Extract:
    """A text about two or three records of a kind, as a list within an object."""
    count = choose.randint(2, 3)
    fields = [kind.subject, *choose.sample(kind.fields, choose.randint(1, 2))]
    keys = _keys(fields, choose)
    texts, found = [], []
    for _ in range(count):
        chosen = [(each, each.draw(choose)) for each in fields]
        texts.append(_told(kind, chosen, choose))
        found.append({key: value for key, (_, value) in zip(keys, chosen, strict=True)})
    properties = {key: dict(each.schema) for key, each in zip(keys, fields, strict=True)}
    name = choose.choice(kind.names)
    plural = choose.choice((name.lower() + "s", "items", "results", "list"))
    schema = schema_of({plural: {"type": "array", "items": schema_of(properties, choose)}}, choose)
    return Extract(name, " ".join(texts), {plural: found}, schema)


def opinion(choose: Random) -> Extract:
    """What somebody thinks of a product."""
    feeling = choose.choice(tuple(_OPINIONS))
    thing = choose.choice(v.NOUNS)
    keys = _names(choose, ("sentiment", "opinion", "mood", "label"), ("product", "item", "thing"))
    properties = {keys[0]: {"type": "string", "enum": list(_OPINIONS)}, keys[1]: {"type": "string"}}
    value = {keys[0]: feeling, keys[1]: thing}
    if choose.random() < 0.4:
        del properties[keys[1]], value[keys[1]]
    text = choose.choice(_OPINIONS[feeling]).format(thing)
    return Extract("Review", text, value, schema_of(properties, choose))


def schema_of(properties: dict[str, Any], choose: Random) -> dict[str, Any]:
    """An object's schema, as strictly or loosely as people write them."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if choose.random() < 0.8:
        schema["required"] = list(properties)
    if choose.random() < 0.4:
        schema["additionalProperties"] = False
    return schema


def _names(choose: Random, *options: tuple[str, ...]) -> list[str]:
    return [choose.choice(each) for each in options]


def _keys(fields: list[Field], choose: Random) -> list[str]:
    """A name for each field, no two alike."""
    keys: list[str] = []
    for each in fields:
        free = [name for name in each.names if name not in keys]
        keys.append(choose.choice(free) if free else f"{each.names[0]}_{len(keys)}")
    return keys


def _told(kind: Kind, chosen: list[tuple[Field, Any]], choose: Random) -> str:
    """Sentences that say all of it, the subject first."""
    (_, subject), *others = chosen
    phrases = [choose.choice(each.phrases).format(v.spoken(value)) for each, value in others]
    opening = choose.choice(kind.openings).format(subject)
    style = choose.random()
    if style < 0.35:
        return f"{opening} {v.spoken(phrases)}."
    if style < 0.6 and len(phrases) > 1:
        again = choose.choice(_PRONOUNS.get(kind.names[0], ("It",)))
        verb = v.spoken(phrases[1:])
        return f"{opening} {phrases[0]}. {_plural(again, verb)}."
    if style < 0.8:
        return (
            ". ".join(f"{opening if number == 0 else subject} {phrase}" for number, phrase in enumerate(phrases)) + "."
        )
    return f"{opening} {' and '.join(phrases)}."


def _plural(subject: str, phrase: str) -> str:
    """`They` with the verbs of a phrase in the singular would be wrong, so that the subject is `This one` then."""
    return f"{'This one' if subject == 'They' else subject} {phrase}"
