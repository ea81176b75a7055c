"""Functions that a conversation may have as tools, and what people say who want them called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from training.demo_models.tool_use.values import Draw, made_up_word, spoken, words

_OPTIONAL: Final = re.compile(r"\[(\w+)\|([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Parameter:
    """names: what a tool may call it, of which `names[0]` is its place in questions. schema: its JSON Schema.

    flag: a boolean that is true where the question has its words, and left out where not.
    """

    names: tuple[str, ...]
    description: str
    draw: Draw
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})

    @property
    def flag(self) -> bool:
        return bool(self.schema["type"] == "boolean")


@dataclass(frozen=True, slots=True)
class Function:
    """names and descriptions: of which each conversation takes one.

    asks: questions with places for parameters; `[unit| in {unit}]` stands there where the optional parameter does.
    result: fields of what the function gives back. replies: what is said then, of result and arguments.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    asks: tuple[str, ...]
    result: Mapping[str, Draw] = field(default_factory=dict)
    replies: tuple[str, ...] = ()

    @property
    def optional(self) -> frozenset[str]:
        """Parameters that some question puts in brackets."""
        return frozenset(name for ask in self.asks for name, _ in _OPTIONAL.findall(ask))


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the API has it, and the values by the places of questions."""

    name: str
    arguments: dict[str, Any]
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Offer:
    """A function under the names that one conversation gives it. `keys`: of parameters, by their places."""

    function: Function
    name: str
    tool: dict[str, Any]
    keys: Mapping[str, str]

    def question(self, choose: Random) -> tuple[str, Call]:
        """What somebody says, and the call that it wants."""
        ask = choose.choice(self.function.asks)
        mentioned = set(re.findall(r"\{(\w+)\}", _OPTIONAL.sub("", ask)))
        kept = {name for name, _ in _OPTIONAL.findall(ask) if choose.random() < 0.5}
        values = {
            parameter.names[0]: True if parameter.flag else parameter.draw(choose)
            for parameter in self.function.parameters
            if parameter.names[0] in mentioned | kept
        }
        text = _OPTIONAL.sub(lambda found: found[2] if found[1] in kept else "", ask)
        text = text.format(**{name: spoken(value) for name, value in values.items()})
        arguments = {self.keys[name]: value for name, value in values.items()}
        return text, Call(self.name, arguments, values)

    def outcome(self, call: Call, choose: Random) -> tuple[dict[str, Any], str]:
        """What the function gives back, and what is said then."""
        result = {name: draw(choose) for name, draw in self.function.result.items()}
        said = {name: spoken(value) for name, value in (call.values | result).items()}
        possible = [reply for reply in self.function.replies if set(re.findall(r"\{(\w+)\}", reply)) <= said.keys()]
        return result, choose.choice(possible).format(**said)


def offered(function: Function, choose: Random) -> Offer:
    """The function as a tool, its names drawn from those that it may have."""
    keys = {each.names[0]: choose.choice(each.names) for each in function.parameters}
    if len(set(keys.values())) < len(keys):
        keys = {name: name for name in keys}
    name = restyled(choose.choice(function.names), choose)
    properties = {}
    for parameter in function.parameters:
        described = {"description": parameter.description} if choose.random() < 0.6 else {}
        properties[keys[parameter.names[0]]] = dict(parameter.schema) | described
    needed = [keys[each.names[0]] for each in function.parameters if each.names[0] not in function.optional]
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if needed and choose.random() < 0.85:
        parameters["required"] = needed
    if choose.random() < 0.3:
        parameters["additionalProperties"] = False
    described = {"description": choose.choice(function.descriptions)} if choose.random() < 0.85 else {}
    tool = {"type": "function", "function": {"name": name, **described, "parameters": parameters}}
    return Offer(function, name, tool, keys)


def restyled(name: str, choose: Random) -> str:
    """A name in snake case, now and then as getWeather or with a number."""
    kind = choose.random()
    if kind < 0.1:
        first, *rest = name.split("_")
        return first + "".join(word.capitalize() for word in rest)
    return f"{name}_{choose.randint(1, 9)}" if kind < 0.13 else name


VERBS: Final = words(
    "update create delete find start stop move copy open close check reserve cancel export share archive"
)
THINGS: Final = words(
    "order ticket invoice account project task record folder device sensor server job session request booking parcel "
    "contract member group channel image room machine report"
)
_PLACES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "id": ("identifier", {"type": "string"}),
    "number": ("count", {"type": "integer"}),
    "name": ("made_up", {"type": "string"}),
    "owner": ("full_name", {"type": "string"}),
    "amount": ("amount", {"type": "number"}),
    "date": ("date", {"type": "string"}),
    "city": ("city", {"type": "string"}),
    "status": ("status", {"type": "string", "enum": ["new", "active", "paused", "done"]}),
    "priority": ("priority", {"type": "string", "enum": ["low", "medium", "high"]}),
    "colour": ("colour", {"type": "string"}),
    "quantity": ("count", {"type": "integer"}),
    "email": ("email", {"type": "string"}),
}


def made_up_function(choose: Random, draws: Mapping[str, Draw]) -> Function:
    """A function that nobody has seen: a verb, a thing and one to four parameters, each asked for by its name."""
    verb = choose.choice(VERBS) if choose.random() < 0.8 else made_up_word(choose).lower()
    thing = choose.choice(THINGS) if choose.random() < 0.8 else made_up_word(choose).lower()
    chosen = choose.sample(sorted(_PLACES), choose.randint(1, 4))
    parameters = tuple(
        Parameter((name,), f"The {thing}'s {name}.", draws[_PLACES[name][0]], _PLACES[name][1]) for name in chosen
    )
    joined = spoken([f"{name} {{{name}}}" for name in chosen])
    comma = ", ".join(f"{name}: {{{name}}}" for name in chosen)
    asks = (
        f"{verb.capitalize()} the {thing} with {joined}.",
        f"Please {verb} a {thing} with {joined}.",
        f"I want to {verb} a {thing}. {comma.capitalize() if comma[0] != '{' else comma}.",
        f"Can you {verb} the {thing} that has {joined}?",
    )
    descriptions = (f"{verb.capitalize()} a {thing}.", f"Use this to {verb} a {thing}.")
    return Function((f"{verb}_{thing}",), descriptions, parameters, asks)


def distinct(offers: Sequence[Offer]) -> list[Offer]:
    """Those whose names differ, the first of each."""
    return list({each.name: each for each in reversed(offers)}.values())[::-1]
