"""What answers with tools and with JSON are worth: greedy, held to nothing, on functions and kinds never trained on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from tokenizers import Tokenizer

from training.common.model import CausalLM
from training.demo_models.sampler import generate
from training.demo_models.tokenizer import stop_ids
from training.demo_models.tool_use.conversations import CALL, CALLS, KEYS, PLAIN, SCHEMA, Made, Maker
from training.demo_models.tool_use.encode import prompt_text, template

OPEN: Final = "<tool_call>\n"
CLOSE: Final = "\n</tool_call>"
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def cases(pairs: Sequence[tuple[str, str]], count: int, seed: int, *, trained: bool) -> list[Made]:
    """Conversations to judge by, of functions and kinds that were trained on, or of others."""
    maker = Maker.of_training(pairs) if trained else Maker.of_evaluation(pairs)
    choose = Random(seed)
    kinds = (CALL, CALL, CALLS, SCHEMA, SCHEMA, KEYS, PLAIN)
    return [maker.make(choose, kinds[number % len(kinds)]) for number in range(count)]


def calls_in(text: str) -> list[Any] | None:
    """The calls of an answer that is nothing else; None where it is not."""
    found = []
    while text:
        if not text.startswith(OPEN) or CLOSE not in text:
            return None
        inner, text = text[len(OPEN) :].split(CLOSE, 1)
        try:
            found.append(json.loads(inner))
        except ValueError:
            return None
    return found


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value fits a schema of those that conversations here have."""
    kind = schema.get("type", "object")
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, list):
        return all(fits(each, schema["items"]) for each in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return set(schema.get("required", ())) <= set(value) <= set(known) and all(
            fits(each, known[key]) for key, each in value.items()
        )
    return True


def verdict(made: Made, text: str) -> tuple[bool, bool]:
    """Whether an answer has the form that was wanted and fits its schemas, and whether it is what was wanted."""
    if made.kind == PLAIN:
        plain = OPEN.strip() not in text and not text.startswith("{")
        return plain, plain
    if made.kind in (CALL, CALLS):
        calls = calls_in(text)
        if not calls:
            return False, False
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in made.tools}
        valid = all(
            isinstance(call, dict)
            and call.get("name") in schemas
            and fits(call.get("arguments"), schemas[call["name"]])
            for call in calls
        )
        return valid, calls == made.wanted
    try:
        value = json.loads(text)
    except ValueError:
        return False, False
    assert made.schema is not None
    return fits(value, made.schema), value == made.wanted


def judged(model: CausalLM, tokenizer: Tokenizer, made: Sequence[Made], slots: int = 1_500_000) -> dict[str, Any]:
    """By kind of conversation: the number, shares of answers valid and right; and some answers."""
    rendering, stops = template(), stop_ids(tokenizer)
    prompts = [tokenizer.encode(prompt_text(each, rendering), add_special_tokens=False).ids for each in made]
    answers = generate(model, prompts, [0.0] * len(prompts), 192, stops, 0, slots=slots)
    count, valid, right = Counter[str](), Counter[str](), Counter[str]()
    samples = []
    for each, answer in zip(made, answers, strict=True):
        text = tokenizer.decode(answer[: -1 if answer[-1] in stops else None]).strip()
        good, exact = verdict(each, text) if answer[-1] in stops else (False, False)
        count[each.kind] += 1
        valid[each.kind] += good
        right[each.kind] += exact
        if count[each.kind] <= 3:
            question = str(each.messages[-2]["content"])
            samples.append({"kind": each.kind, "question": question, "answer": text, "wanted": each.wanted})
    kinds = {
        kind: {"number": number, "valid": round(valid[kind] / number, 4), "right": round(right[kind] / number, 4)}
        for kind, number in count.items()
    }
    return {"kinds": kinds, "samples": samples}
