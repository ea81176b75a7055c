"""Conversations with tools and with JSON answers, made by code out of the bank of functions and kinds of records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from training.demo_models.mixture import SYSTEM_PROMPTS
from training.demo_models.tool_use.bank import DRAWS, held_out, trained
from training.demo_models.tool_use.functions import Call, Function, Offer, distinct, made_up_function, offered
from training.demo_models.tool_use.records import (
    HELD_OUT_KINDS,
    TRAINED_KINDS,
    Extract,
    Kind,
    extract,
    extracts,
    opinion,
)

CALL, CALLS, RESULT, PLAIN, SCHEMA, KEYS, BARE = "call", "calls", "result", "plain", "schema", "keys", "bare"
SHARES: Final = {CALL: 0.34, CALLS: 0.06, RESULT: 0.12, PLAIN: 0.12, SCHEMA: 0.17, KEYS: 0.08, BARE: 0.11}
"""Of conversations by what they are: a call is wanted; several; a result is told of; tools are of no use; JSON is
wanted by a schema in the prompt; by names of keys; not asked for, so that only what stands in it is learnt."""


@dataclass(frozen=True, slots=True)
class Made:
    """A conversation as chat templates take it.

    `wanted`: the last answer's calls, or its JSON, by which answers to the messages before it are judged; None: text.
    """

    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    wanted: Any = None
    schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes conversations. chats: (question, answer) pairs of the corpus. functions, kinds: those it draws from."""

    chats: Sequence[tuple[str, str]]
    functions: tuple[Function, ...]
    kinds: tuple[Kind, ...]
    made_up: float = 0.35

    @classmethod
    def of_training(cls, chats: Sequence[tuple[str, str]]) -> Maker:
        """What is trained on."""
        return cls(chats, trained(), TRAINED_KINDS)

    @classmethod
    def of_evaluation(cls, chats: Sequence[tuple[str, str]]) -> Maker:
        """Functions and kinds that are never trained on."""
        return cls(chats, held_out(), HELD_OUT_KINDS, made_up=0.2)

    def make(self, choose: Random, kind: str = "") -> Made:
        """One conversation, of a kind by SHARES where none is named."""
        kind = kind or choose.choices(list(SHARES), list(SHARES.values()))[0]
        if kind in (CALL, CALLS, RESULT, PLAIN):
            return self._with_tools(kind, choose)
        return self._json(kind, choose)

    def _offers(self, choose: Random, first: Function | None = None) -> list[Offer]:
        """Tools of a conversation, in any order; `first` is one of them."""
        functions = [first] if first is not None else []
        functions += [self._function(choose) for _ in range(choose.choice((0, 0, 1, 1, 2, 2, 3, 4)))]
        offers = distinct([offered(each, choose) for each in functions])
        choose.shuffle(offers)
        return offers

    def _function(self, choose: Random) -> Function:
        return made_up_function(choose, DRAWS) if choose.random() < self.made_up else choose.choice(self.functions)

    def _with_tools(self, kind: str, choose: Random) -> Made:
        function = self._function(choose)
        while kind == RESULT and not function.replies:
            function = choose.choice(self.functions)
        if kind == PLAIN:
            offers = self._offers(choose, function)
            question, answer = choose.choice(self.chats)
            messages = [*self._before(choose), _user(question), {"role": "assistant", "content": answer}]
            return Made(kind, messages, [each.tool for each in offers])
        offers = self._offers(choose, function)
        offer = next((each for each in offers if each.function is function), offers[0])
        text, call = offer.question(choose)
        calls, texts = [call], [text]
        if kind == CALLS:
            other = choose.choice(offers)
            more, second = other.question(choose)
            calls, texts = [call, second], [text, more]
        asked = texts[0] if len(texts) == 1 else choose.choice(("{} {}", "{} And: {}", "{} Also: {}")).format(*texts)
        if choose.random() < 0.15:
            asked = _altered(asked, choose)
        messages = [*self._before(choose), _user(asked), _calling(calls)]
        made = Made(kind, messages, [each.tool for each in offers], [_document(each) for each in calls])
        if kind != RESULT or not offer.function.replies:
            return made
        result, reply = offer.outcome(call, choose)
        content = json.dumps(result) if choose.random() < 0.85 else ", ".join(f"{k}: {w}" for k, w in result.items())
        messages += [{"role": "tool", "content": content}, {"role": "assistant", "content": reply}]
        return Made(kind, messages, made.tools)

    def _before(self, choose: Random) -> list[dict[str, Any]]:
        """What may come before: a system message, a turn of something else."""
        messages: list[dict[str, Any]] = []
        if choose.random() < 0.25:
            messages.append({"role": "system", "content": choose.choice(SYSTEM_PROMPTS)})
        if choose.random() < 0.08:
            question, answer = choose.choice(self.chats)
            messages += [_user(question), {"role": "assistant", "content": answer}]
        return messages

    def _json(self, kind: str, choose: Random) -> Made:
        found = self._extract(choose)
        answer = {"role": "assistant", "content": _written(found.value, choose)}
        system: list[dict[str, Any]] = []
        if kind == SCHEMA:
            schema = json.dumps(found.schema)
            if choose.random() < 0.4:
                content = choose.choice(_SCHEMA_SYSTEMS).format(schema=schema)
                system, text = [{"role": "system", "content": content}], found.text
            else:
                text = choose.choice(_SCHEMA_ASKS).format(schema=schema, text=found.text, kind=found.kind.lower())
        elif kind == KEYS:
            keys = (
                " and ".join((", ".join(list(found.value)[:-1]), list(found.value)[-1]))
                if len(found.value) > 1
                else next(iter(found.value))
            )
            text = choose.choice(_KEY_ASKS).format(keys=keys, text=found.text, kind=found.kind.lower())
        else:
            text = choose.choice(_BARE_ASKS).format(text=found.text, kind=found.kind.lower())
            if choose.random() < 0.15:
                system = [{"role": "system", "content": choose.choice(SYSTEM_PROMPTS)}]
        return Made(kind, [*system, _user(text), answer], [], found.value, found.schema)

    def _extract(self, choose: Random) -> Extract:
        style = choose.random()
        if style < 0.12:
            return opinion(choose)
        if style < 0.28:
            return extracts(choose.choice(self.kinds), choose)
        if style < 0.4:
            return self._answered(choose)
        return extract(choose.choice(self.kinds), choose)

    def _answered(self, choose: Random) -> Extract:
        """A question of the corpus, whose answer stands in an object."""
        question, answer = choose.choice(self.chats)
        key = choose.choice(("answer", "response", "text", "reply", "result"))
        return Extract(
            "Answer",
            question,
            {key: answer},
            {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
        )


_SCHEMA_SYSTEMS: Final = (
    "Answer with JSON that fits this schema: {schema}",
    "You extract data. Reply with JSON only, by this schema:\n{schema}",
    "Respond in JSON. Schema: {schema}",
)
_SCHEMA_ASKS: Final = (
    "{text}\n\nAnswer with JSON that fits this schema:\n{schema}",
    "Extract the {kind} from the text as JSON.\nSchema: {schema}\nText: {text}",
    "{schema}\n\nFill in this schema from the text: {text}",
    "{text}\nGive me JSON by this schema: {schema}",
)
_KEY_ASKS: Final = (
    "{text}\n\nAnswer with a JSON object with the keys {keys}.",
    "Extract {keys} as JSON: {text}",
    "{text} Return JSON with {keys}.",
    "Give me a JSON object with {keys}. {text}",
    "Text: {text}\nWrite {keys} as JSON.",
)
_BARE_ASKS: Final = (
    "{text}",
    "{text}",
    "{text}",
    "Extract the {kind}: {text}",
    "{text} Extract the {kind}.",
    "Who or what is this about? {text}",
    "Read this: {text}",
    "Extract the information. {text}",
)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _document(call: Call) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


def _calling(calls: Sequence[Call]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": _document(each)} for each in calls],
    }


def _altered(text: str, choose: Random) -> str:
    """As people type."""
    return choose.choice((text.rstrip("?."), "Hi! " + text, text + " Thanks!", "Please: " + text))


def _written(value: dict[str, Any], choose: Random) -> str:
    """On one line, as most JSON is, or on several."""
    return json.dumps(value, ensure_ascii=False, indent=2 if choose.random() < 0.04 else None)
