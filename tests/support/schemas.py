"""Schemas of many kinds, all of bounded length, that a grammar can enforce."""

from __future__ import annotations

from typing import Any


def text(longest: int = 8, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": longest, **more}


def number(low: int = 0, high: int = 99) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def record(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    required = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        **more,
    }


def several(items: dict[str, Any], most: int = 3, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


FLAG: dict[str, Any] = {"type": "boolean"}
CALL = record({"name": {"const": "get_weather"}, "arguments": record({"city": text(), "days": number(1, 9)})})

SCHEMAS: list[dict[str, Any]] = [
    FLAG,
    {"type": "null"},
    number(),
    number(-5, 5),
    {"type": "number", "minimum": 0, "exclusiveMaximum": 10},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50},
    text(),
    text(3, minLength=3),
    {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"},
    {"type": "string", "pattern": "^(red|green)?-?blue$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "uuid"},
    {"enum": ["north", "south", "east", "west"]},
    {"enum": [1, 2, None, True, "x"]},
    {"const": {"fixed": [1, 2, {"deep": None}]}},
    record({}),
    record({"a": FLAG}),
    record({"a": FLAG, "b": FLAG, "c": number()}),
    record({"a": FLAG, "b": text(), "c": number()}, required=["b"]),
    record({"a": FLAG, "b": text(), "c": number()}, required=[]),
    record({"name": text(12), "age": number(0, 120), "email": {"type": "string", "maxLength": 12}}),
    record({"outer": record({"inner": record({"leaf": FLAG})})}),
    record({"list": several(FLAG)}),
    record({"matrix": several(several(number(0, 9), 2, 2), 2, 2)}),
    several(number()),
    several(text(4), most=4, least=2),
    several(record({"id": number(), "ok": FLAG})),
    several({"enum": ["a", "b"]}, most=5, least=5),
    {"type": "array", "prefixItems": [FLAG, number(), text(4)], "items": False, "minItems": 3},
    {"type": "array", "prefixItems": [number()], "items": FLAG, "maxItems": 3},
    {"anyOf": [FLAG, number(), {"type": "null"}]},
    {"anyOf": [record({"kind": {"const": "a"}, "x": number()}), record({"kind": {"const": "b"}, "y": text(4)})]},
    {"oneOf": [record({"kind": {"const": "a"}}), record({"other": number()})]},
    {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 7}]},
    {"allOf": [record({"a": FLAG}, additionalProperties=True), {"required": ["a"]}], "maxProperties": 1},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    {"type": ["boolean", "null"]},
    {"type": "object", "additionalProperties": number(0, 9), "maxProperties": 2},
    {"type": "object", "patternProperties": {"^x[0-9]$": FLAG}, "additionalProperties": False, "maxProperties": 2},
    {"$defs": {"leaf": number()}, **record({"a": {"$ref": "#/$defs/leaf"}, "b": {"$ref": "#/$defs/leaf"}})},
    {
        "$defs": {"node": record({"v": number(0, 9), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})},
        "$ref": "#/$defs/node",
    },
    CALL,
    several(CALL, most=2, least=1),
    record({"tool": {"enum": ["search", "open", "close"]}, "query": text(10)}),
    record({"answer": text(), "confidence": {"type": "number", "minimum": 0, "maximum": 1}}),
    record({"héllo wörld": FLAG, 'quote"d': number()}),
    record({"status": {"enum": ["ok", "error"]}, "code": {"enum": [200, 404, 500]}, "body": {"type": "null"}}),
    record({f"field_{index}": FLAG for index in range(8)}),
    record({"steps": several(record({"do": text(6), "n": number(1, 3)}), most=2, least=1), "done": {"const": True}}),
    {
        "title": "Point",
        "description": "A place.",
        **record({"x": number(), "y": number()}),
        "examples": [{"x": 1, "y": 2}],
    },
]

ENDLESS: dict[str, Any] = {"allOf": [{"type": "string", "pattern": f"a.{{{count}}}b"} for count in range(1, 60)]}
"""Takes minutes to compile."""
