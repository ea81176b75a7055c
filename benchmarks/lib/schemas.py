"""JSON Schemas of the kinds that public collections hold, generated: the same ones for the same seed.

The kinds are those of JSONSchemaBench's splits (Geng et al., 2025, table 1) and of MaskBench: schemas of repositories
from trivial to hard, function signatures, custom resources, events, articles, settings, and corners of the language.
All can be enforced, and nearly all bound the length of what they describe, so that a model that was not trained on
them gets to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

Schema = dict[str, Any]
_WORDS: Final = (  # noqa: SIM905 - as a list they would take a page
    "name id title city country price amount status kind label owner email phone address street zip date start end "
    "count total items tags notes color size weight height width depth level score rank group team user role token key "
    "value path url host port mode state reason code message error result source target parent child index offset limit"
).split()
_VALUES: Final = (  # noqa: SIM905
    "red green blue small large open closed active north south east west low medium high draft final daily weekly"
).split()


def text(longest: int = 10, **more: Any) -> Schema:
    """A string of at most so many characters."""
    return {"type": "string", "maxLength": longest, **more}


def whole(low: int = 0, high: int = 99) -> Schema:
    """An integer within bounds."""
    return {"type": "integer", "minimum": low, "maximum": high}


def record(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    """An object of these properties alone, all of them required unless some are named."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


def several(items: Schema, most: int, least: int = 0) -> Schema:
    """A list of bounded length."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _names(pick: Random, count: int) -> list[str]:
    return pick.sample(_WORDS, count)


def _scalar(pick: Random) -> Schema:
    kinds: list[Callable[[], Schema]] = [
        lambda: {"type": "boolean"},
        lambda: whole(pick.randint(-20, 0), pick.randint(1, 500)),
        lambda: text(pick.randint(2, 8)),
        lambda: {"enum": pick.sample(_VALUES, pick.randint(2, 5))},
        lambda: {"type": ["integer", "null"], "minimum": 0, "maximum": pick.randint(1, 50)},
        lambda: {"const": pick.choice(_VALUES)},
    ]
    return pick.choice(kinds)()


def trivial(pick: Random) -> Schema:
    """One value, or a record of one."""
    return _scalar(pick) if pick.random() < 0.5 else record({pick.choice(_WORDS): _scalar(pick)})


def easy(pick: Random) -> Schema:
    """A flat record, some of whose properties may be missing."""
    names = _names(pick, pick.randint(2, 4))
    return record({name: _scalar(pick) for name in names}, [name for name in names if pick.random() < 0.5])


def medium(pick: Random) -> Schema:
    """Records within a record, and lists of them."""
    first, second, third, fourth = _names(pick, 4)
    parts = {first: easy(pick), second: several(easy(pick), 1), third: several(_scalar(pick), 2), fourth: _scalar(pick)}
    return record(parts, pick.sample([first, second, third], 2))


def hard(pick: Random) -> Schema:
    """Definitions that refer to one another, alternatives told apart by a constant, lists of lists."""
    one, two, three = _names(pick, 3)
    leaf, node = easy(pick), record({one: _scalar(pick), two: {"$ref": "#/$defs/leaf"}})
    chosen = [record({"type": {"const": value}, three: _scalar(pick)}) for value in pick.sample(_VALUES, 3)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"leaf": leaf, "node": node, "choice": {"anyOf": chosen}},
        **record({"root": {"$ref": "#/$defs/node"}, "choice": {"$ref": "#/$defs/choice"},
                  "matrix": several(several(whole(0, 9), 2, 2), 1)}, ["root", "choice"]),
    }  # fmt: skip


def arguments(pick: Random) -> Schema:
    """What a function takes, as in collections of tool calls."""
    names = _names(pick, pick.randint(1, 4))
    properties = {name: _scalar(pick) | {"description": f"The {name} to use."} for name in names}
    return {**record(properties, names[: pick.randint(1, len(names))])}


def resource(pick: Random) -> Schema:
    """A custom resource of a cluster: kind, metadata with labels, a specification with containers."""
    labels = {"type": "object", "patternProperties": {"^[a-z]{1,6}$": text(6)}, "additionalProperties": False,
              "maxProperties": 2}  # fmt: skip
    container = record({"name": text(5, pattern="^[a-z]+$"), "port": whole(1, 65535)}, ["name"])
    metadata = record({"name": text(pick.randint(3, 6)), "labels": labels}, ["name"])
    spec = record({"replicas": whole(0, pick.randint(1, 99)), "containers": several(container, 1)})
    kind = pick.choice(["Service", "Deployment", "Job"])
    return record({"apiVersion": {"const": "v1"}, "kind": {"const": kind}, "metadata": metadata, "spec": spec})


def event(pick: Random) -> Schema:
    """An analytics event: short strings, numbers within bounds, values that may be null."""
    properties: Schema = {}
    for name in _names(pick, pick.randint(2, 4)):
        longest = pick.randint(2, 8)
        kinds: list[Schema] = [
            {"type": ["string", "null"], "maxLength": longest},
            {"type": "string", "enum": pick.sample(_VALUES, 3)},
            {"type": "number", "minimum": 0, "maximum": pick.choice([1, 10, 100])},
            {"type": "string", "format": pick.choice(["date", "time", "uuid", "ipv4"])},
            {"type": "boolean"},
        ]
        properties[name] = pick.choice(kinds)
    return {"description": "An event.", **record(properties)}


def article(pick: Random) -> Schema:
    """An article: blocks of several types, told apart by one property."""
    blocks = [
        record({"type": {"const": "paragraph"}, "content": text(pick.randint(5, 12))}),
        record({"type": {"const": "image"}, "url": text(pick.randint(3, 6)), "width": whole(1, pick.randint(9, 999))}),
        record({"type": {"const": "list"}, "items": several(text(3), 2, 1)}),
    ]
    headline = record({"basic": text(pick.randint(4, 9))})
    return record({"headlines": headline, "content": several({"anyOf": blocks}, 1), "version": {"const": "0.10.3"}})


def settings(pick: Random) -> Schema:
    """A configuration file: maps, patterns and many properties that may be missing."""
    names = _names(pick, pick.randint(4, 8))
    properties: Schema = {name: _scalar(pick) for name in names}
    properties["version"] = {"type": "string", "pattern": r"^[0-9]{1,2}\.[0-9]{1,2}\.[0-9]$"}
    properties["rules"] = {
        "type": "object",
        "additionalProperties": {"enum": ["off", "warn", "error"]},
        "maxProperties": 1,
    }
    return record(properties, ["version"])


def corner(pick: Random) -> Schema:
    """One corner of the language: bounds, multiples, patterns, formats, tuples, allOf, lists of one value."""
    low = pick.randint(-50, 50)
    kinds: list[Schema] = [
        {"type": "integer", "multipleOf": pick.choice([3, 5, 7]), "minimum": 0, "maximum": 99},
        {"type": "number", "exclusiveMinimum": low, "maximum": low + 3},
        {"type": "string", "pattern": f"^[A-F]{{{pick.randint(1, 4)}}}-[0-9]{{2,4}}$"},
        {"type": "string", "format": pick.choice(["date-time", "email", "ipv6", "hostname"]), "maxLength": 30},
        {"type": "array", "prefixItems": [_scalar(pick), _scalar(pick)], "items": False, "minItems": 2},
        {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": pick.randint(4, 90)}]},
        {"type": "array", "items": {"enum": pick.sample(_VALUES, 3)}, "minItems": 2, "maxItems": pick.randint(2, 5)},
        {"type": "object", "additionalProperties": whole(0, 9), "minProperties": 1, "maxProperties": 2},
        {"enum": [1, "one", None, True, {"one": [1]}]},
        record({"héllo wörld": {"type": "boolean"}, 'quote"d': text(5), "a/b\\c": whole()}),
        {"type": "string", "minLength": 2, "maxLength": pick.randint(3, 20)},
        {"type": "string"},
    ]
    return pick.choice(kinds)


KINDS: Final[tuple[Callable[[Random], Schema], ...]] = (
    trivial, easy, medium, hard, arguments, resource, event, article, settings, corner,
)  # fmt: skip


def schemas(count: int, seed: int) -> list[tuple[str, Schema]]:
    """Return so many different schemas with their kinds, the kinds in turn."""
    found: list[tuple[str, Schema]] = []
    pick = Random(seed)
    while len(found) < count:
        kind = KINDS[len(found) % len(KINDS)]
        schema = kind(pick)
        if all(schema != known for _, known in found):
            found.append((kind.__name__, schema))
    return found
