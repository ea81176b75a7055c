"""Everything that decides how the demo target goes on learning, resolved once from the command line."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Continuation:
    """Defaults fit eight minutes of one H100 or H200. Seconds are the most that a stage may take.

    Learning rates fall with a stage's steps or its seconds, whichever runs out first: weights depend on the machine.
    """

    seed: int = 21
    row_length: int = 2048
    seconds: float = 450.0
    conversations: int = 120_000
    longest: int = 1536
    # target: rows of conversations with tools, and of ordinary ones on which it must stay what it was
    target_seconds: float = 80.0
    target_steps: int = 4000
    tool_rows: int = 16
    chat_rows: int = 16
    anchor: float = 1.0
    matrix_lr: float = 0.006
    embedding_lr: float = 0.001
    weight_decay: float = 0.01
    # its answers
    answer_seconds: float = 36.0
    answers: int = 100_000
    answers_a_time: int = 10_000
    answer_tokens: int = 192
    tool_share: float = 0.25
    # draft model
    draft_seconds: float = 35.0
    draft_steps: int = 4000
    draft_rows: int = 16
    draft_matrix_lr: float = 0.006
    draft_embedding_lr: float = 0.0015
    argmax_weight: float = 0.6
    # head
    head_seconds: float = 130.0
    head_steps: int = 0
    head_rows: int = 12
    head_row_length: int = 1536
    head_lr: float = 0.0015
    head_trial_steps: int = 120
    head_tokens: int = 8_000_000
    # evaluation
    judged: int = 400
    compared: int = 480
    reserve: float = 25.0


@dataclass(frozen=True, slots=True)
class Options:
    """Where a run reads and writes, and on what it computes."""

    models: Path
    corpus: Path
    eval_prompts: Path
    work: Path
    out: Path
    device: str
    compile: bool
    workers: int
    install: bool = False
    recipe: Continuation = field(default_factory=Continuation)


def parse(arguments: list[str] | None = None) -> Options:
    """Read the command line; every field of the recipe is a flag of the same name."""
    parser = argparse.ArgumentParser(prog="python -m training.demo_models.tool_use", description=__doc__)
    for name, told in (
        ("models", "directory with the demo models as they are: target, draft model, EAGLE-3 head"),
        ("corpus", "directory with corpus.jsonl.xz, or a sample of it, and heldout.jsonl.xz"),
        ("eval-prompts", "directory with spec_bench_question.jsonl and in_domain_heldout.jsonl"),
        ("work", "directory for the models that are made, arrays and logs"),
        ("out", "directory that receives each model as NAME*.tar as soon as it is done, and results.json"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=told)
    parser.add_argument("--device", default="cuda", help="torch device (default cuda)")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="use torch.compile")
    parser.add_argument("--workers", type=int, default=14, help="processes that make and tokenise text")
    parser.add_argument("--install", action="store_true", help="replace the models in --models at the end")
    recipe = parser.add_argument_group("recipe")
    for entry in dataclasses.fields(Continuation):
        default: Any = entry.default
        flag = "--" + entry.name.replace("_", "-")
        recipe.add_argument(flag, type=type(default), default=default, help=f"default {default}")
    parsed = vars(parser.parse_args(arguments))
    values = {entry.name: parsed.pop(entry.name) for entry in dataclasses.fields(Continuation)}
    return Options(recipe=Continuation(**values), **parsed)
