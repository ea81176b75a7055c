"""Sizes of the mixture and every number of its recipe, resolved once from the command line."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from training.common.model_shape import MixtureShape
from training.demo_models.settings import Options, Recipe

_NOT_USED: Final = ("align_", "draft_", "answers")
"""How fields of Recipe begin that are of the draft model alone."""


@dataclass(frozen=True, slots=True)
class MixtureRecipe(Recipe):
    """Defaults fit eight minutes of one H100 or H200. Seconds are the most that the run, or a stage, may take.

    Steps are as many as fit into a stage's seconds, so that weights depend on the machine. Where the run is short of
    time, stages do less, and each writes what it has.
    """

    seed: int = 23
    seconds: float = 480.0
    # target: experts of half the demo model's feed-forward width, of which a token has two
    experts: int = 8
    experts_per_token: int = 2
    intermediate_size: int = 512
    balance: float = 0.01
    target_seconds: float = 215.0
    polish_steps: int = 200
    polish_prompts: int = 8192
    # its answers
    head_answers: int = 60_000
    answer_tokens: int = 128
    # head
    head_seconds: float = 90.0
    head_steps: int = 0
    head_trial_steps: int = 60
    head_rows: int = 12
    head_row_length: int = 1536
    head_lr: float = 0.003
    head_intermediate_size: int = 2496
    head_heldout: int = 256

    @property
    def target(self) -> MixtureShape:
        return MixtureShape(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            experts=self.experts,
            experts_per_token=self.experts_per_token,
        )


@dataclass(frozen=True, slots=True)
class MixtureOptions(Options):
    """Where a run reads and writes; `tokenizer` is that of the demo models."""

    tokenizer: Path
    recipe: MixtureRecipe


def parse(arguments: list[str] | None = None) -> MixtureOptions:
    """Read the command line; every field of the recipe is a flag of the same name."""
    parser = argparse.ArgumentParser(prog="python -m training.demo_models.experts", description=__doc__)
    for name, told in (
        ("corpus", "directory with corpus.jsonl.xz, or a sample of it, and heldout.jsonl.xz"),
        ("output", "directory that receives slipstream-demo-experts and slipstream-demo-experts-eagle3"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=told)
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=Path("demo_models/slipstream-demo/tokenizer.json"),
        help="of the demo model (default demo_models/slipstream-demo/tokenizer.json)",
    )
    parser.add_argument("--work", type=Path, help="directory for token arrays, runs and logs (default OUTPUT/run)")
    parser.add_argument("--device", default="cuda", help="torch device (default cuda)")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="use torch.compile")
    parser.add_argument("--workers", type=int, default=14, help="processes that tokenise")
    recipe = parser.add_argument_group("recipe")
    fields = [each for each in dataclasses.fields(MixtureRecipe) if not each.name.startswith(_NOT_USED)]
    for each in fields:
        default: Any = each.default
        recipe.add_argument(
            "--" + each.name.replace("_", "-"), type=type(default), default=default, help=f"default {default}"
        )
    parsed = vars(parser.parse_args(arguments))
    values = {each.name: parsed.pop(each.name) for each in fields}
    parsed["work"] = parsed["work"] or parsed["output"] / "run"
    return MixtureOptions(recipe=MixtureRecipe(**values), eval_prompts=None, target=None, **parsed)
