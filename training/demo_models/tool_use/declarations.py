"""Short ways to write functions down."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from training.demo_models.tool_use import values as v
from training.demo_models.tool_use.functions import Function, Parameter

INTEGER: Final = {"type": "integer"}
NUMBER: Final = {"type": "number"}
FLAG: Final = {"type": "boolean"}


def one_of_these(*names: str) -> dict[str, Any]:
    """The schema of a string that is one of these."""
    return {"type": "string", "enum": list(names)}


def texts() -> dict[str, Any]:
    """The schema of a list of strings."""
    return {"type": "array", "items": {"type": "string"}}


def numbers() -> dict[str, Any]:
    """The schema of a list of numbers."""
    return {"type": "array", "items": {"type": "number"}}


def parameter(names: str, description: str, draw: v.Draw, schema: Mapping[str, Any] | None = None) -> Parameter:
    """A parameter by its possible names; a string where no schema is given."""
    return Parameter(tuple(names.split()), description, draw, {"type": "string"} if schema is None else schema)


def function(
    names: str,
    descriptions: tuple[str, ...],
    parameters: tuple[Parameter, ...],
    asks: tuple[str, ...],
    result: Mapping[str, v.Draw] | None = None,
    replies: tuple[str, ...] = (),
) -> Function:
    """A function by its possible names."""
    return Function(tuple(names.split()), descriptions, parameters, asks, result or {}, replies)


def always(_: Random) -> bool:
    """Of flags, which stand where they are true."""
    return True


CITY: Final = parameter("city location place town", "Name of the city.", v.city)
DAY: Final = parameter("day date when", "Day of the week.", v.one_of(v.WEEKDAYS))
CONDITIONS: Final = v.one_of(("sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear"))
OK: Final = {"status": v.one_of(("ok", "done", "success"))}
