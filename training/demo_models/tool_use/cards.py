"""Model cards of what was taught tools and JSON: what stays true of the old card, and the figures of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from training.demo_models.card import heldout_table, samples_text, table
from training.demo_models.pretrain import DRAFT_NAME, TARGET_NAME

_KEPT: Final = ("Training", "Data")
"""Sections of an old card that say what a model was made of before."""
_TOOLS: Final = "Tools and JSON"


def card_of(name: str, old: str, results: Mapping[str, Any]) -> str:
    """A model's card after the run whose results.json this is, without the figures and samples of the old card."""
    head, *sections = re.split(r"^## ", old, flags=re.MULTILINE)
    begin = re.split(r"\n\n(?=[^\n#-])", head, maxsplit=1)  # front matter and title, then what the model is
    first = begin[1].split("\n\n")[0].strip() if len(begin) > 1 else ""
    kept = [section.strip() for section in sections if section.split("\n", 1)[0].strip() in _KEPT]
    write = _WRITERS.get(name, _head)
    return "\n\n".join([begin[0].strip(), first, *(f"## {section}" for section in kept), write(results).strip()]) + "\n"


def _target(results: Mapping[str, Any]) -> str:
    before, after, recipe = results["target before"], results["target after"], results["recipe"]
    rows = [
        (which, kind, found["number"], found["valid"], found["right"], *_shares(before[which]["kinds"].get(kind)))
        for which in ("known functions", "new functions")
        for kind, found in after[which]["kinds"].items()
    ]
    head = ("functions", "wanted", "number", "valid", "right", "valid before", "right before")
    answers = [
        f"*{sample['kind']}:* {sample['question']}\n\n````\n{sample['answer']}\n````\n\n"
        f"wanted: `{json.dumps(sample['wanted'])}`"
        for sample in after["new functions"]["samples"]
        if sample["wanted"] is not None
    ]
    return f"""## {_TOOLS}

The chat template knows the roles system (first message only), user, assistant and tool, and takes `tools`; a call
is a JSON object of `name` and `arguments` between tags, and an answer ends with `<|end|>`. The model went on with
{recipe["conversations"]:,} conversations that code makes, of calls, their results and JSON: at most
{recipe["target_steps"]} steps or {recipe["target_seconds"]:g} seconds of {recipe["tool_rows"]} rows of these and
{recipe["chat_rows"]} of ordinary conversation, {recipe["row_length"]} tokens each, held to what it said before by
the divergence from that. Functions and kinds of records under "new functions" are none that it learnt from.

{table(head, rows)}

## Measured

Held-out records of the corpus:

{heldout_table(after)}

## Samples (greedy)

{chr(10).join(f"{each}{chr(10)}" for each in answers)}
{samples_text(after)}
"""


def _draft(results: Mapping[str, Any]) -> str:
    names = ("draft before", "draft after", "draft old with new target")
    rows = [
        (prompts, *(results[name][prompts]["acceptance_length"]["overall"] for name in names))
        for prompts in results["draft after"]
    ]
    return f"""## {_TOOLS}

It went on with answers of the target after that had learnt tools and JSON, a share of
{results["recipe"]["tool_share"]:g} of them to such prompts.

## Measured

Tokens a verify step (bonus included), greedy chains of 4 drafted tokens, 64 new tokens at temperature 0:

{table(("prompts", "before", "after", "as before, new target"), rows)}
"""


def _head(results: Mapping[str, Any]) -> str:
    after = results["head after"]
    found = [
        ("before, its own target", results.get("head before")),
        ("as before, new target", results["head old with new target"]),
        ("after", after),
    ]
    rows = [(name, json.dumps(each["acceptance_length"])) for name, each in found if each is not None]
    return f"""## {_TOOLS}

It went on for {after["steps"]} steps with answers of the target after that had learnt tools and JSON.

## Measured

Tokens a verify step, as training simulates it on the target's answers to Spec-Bench:

{table(("head", "tokens a verify step"), rows)}
"""


def _shares(found: Mapping[str, Any] | None) -> tuple[Any, Any]:
    return ("", "") if found is None else (found["valid"], found["right"])


_WRITERS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {TARGET_NAME: _target, DRAFT_NAME: _draft}
