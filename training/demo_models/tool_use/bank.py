"""All known functions, which of them are trained on, and what made-up ones are filled with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from training.demo_models.tool_use import values as v
from training.demo_models.tool_use.business import BUSINESS
from training.demo_models.tool_use.everyday import EVERYDAY
from training.demo_models.tool_use.functions import Function

BANK: Final = (*EVERYDAY, *BUSINESS)

HELD_OUT: Final = frozenset({"get_population", "add_to_cart", "turn_on", "create_user", "invite", "get_distance"})
"""First names of the functions that are kept for evaluation."""

DRAWS: Final[Mapping[str, v.Draw]] = {
    "identifier": v.identifier,
    "count": v.whole(1, 999),
    "made_up": v.made_up_word,
    "full_name": v.full_name,
    "amount": v.decimal(1, 999),
    "date": v.date,
    "city": v.city,
    "status": v.one_of(("new", "active", "paused", "done")),
    "priority": v.one_of(("low", "medium", "high")),
    "colour": v.one_of(v.COLOURS),
    "email": v.email,
}
"""What parameters of made-up functions are filled with."""


def trained() -> tuple[Function, ...]:
    """Functions to train on."""
    return tuple(each for each in BANK if each.names[0] not in HELD_OUT)


def held_out() -> tuple[Function, ...]:
    """Functions to evaluate on."""
    return tuple(each for each in BANK if each.names[0] in HELD_OUT)
