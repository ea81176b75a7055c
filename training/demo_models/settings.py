"""Sizes of the models and every number of the recipe, resolved once from the command line."""

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.common.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the outcome of a run; the defaults fit eight minutes of one H200."""

    seed: int = 20
    vocab_size: int = 8192
    row_length: int = 2048
    batch_rows: int = 32
    # target
    hidden_size: int = 384
    layers: int = 8
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 128
    intermediate_size: int = 1024
    target_steps: int = 7600
    anneal_fraction: float = 0.4
    matrix_lr: float = 0.02
    embedding_lr: float = 0.003
    weight_decay: float = 0.05
    prompt_weight: float = 0.1
    glue: float = 0.25
    # unlikelihood on the target's own loops
    polish_steps: int = 300
    polish_prompts: int = 16384
    polish_lr_scale: float = 0.1
    polish_penalty: float = 1.0
    # target and draft together
    align_steps: int = 700
    align_lr_scale: float = 0.25
    align_strength: float = 0.5
    # draft
    draft_hidden_size: int = 128
    draft_layers: int = 3
    draft_heads: int = 2
    draft_kv_heads: int = 1
    draft_head_dim: int = 64
    draft_intermediate_size: int = 256
    draft_steps: int = 6600
    draft_batch_rows: int = 16
    draft_corpus_steps: int = 2400
    draft_matrix_lr: float = 0.02
    draft_embedding_lr: float = 0.005
    argmax_weight: float = 0.6
    # the target's own answers
    answers: int = 160_000
    answer_tokens: int = 128

    @property
    def target(self) -> ModelShape:
        return ModelShape(
            self.vocab_size,
            self.hidden_size,
            self.layers,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.intermediate_size,
        )

    @property
    def draft(self) -> ModelShape:
        return ModelShape(
            self.vocab_size,
            self.draft_hidden_size,
            self.draft_layers,
            self.draft_heads,
            self.draft_kv_heads,
            self.draft_head_dim,
            self.draft_intermediate_size,
        )


@dataclass(frozen=True, slots=True)
class Options:
    """Where a run reads and writes, and on what it computes."""

    corpus: Path
    output: Path
    eval_prompts: Path | None
    work: Path
    target: Path | None
    device: str
    compile: bool
    workers: int
    recipe: Recipe


def parse(arguments: list[str] | None = None) -> Options:
    """Read the command line; every field of the recipe is a flag of the same name."""
    parser = argparse.ArgumentParser(prog="python -m training.demo_models.pretrain", description=__doc__)
    parser.add_argument(
        "--corpus", type=Path, required=True, help="directory with corpus.jsonl.xz and heldout.jsonl.xz"
    )
    parser.add_argument("--output", type=Path, required=True, help="directory that receives the two model directories")
    parser.add_argument(
        "--eval-prompts", type=Path, help="directory with spec_bench_question.jsonl, in_domain_heldout.jsonl"
    )
    parser.add_argument(
        "--work", type=Path, help="directory for token arrays, checkpoints and logs (default OUTPUT/run)"
    )
    parser.add_argument("--target", type=Path, help="an exported target: train the draft model alone, for this target")
    parser.add_argument("--device", default="cuda", help="torch device (default cuda)")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="use torch.compile")
    parser.add_argument("--workers", type=int, default=16, help="processes that tokenise")
    recipe = parser.add_argument_group("recipe")
    for field in dataclasses.fields(Recipe):
        default: Any = field.default
        recipe.add_argument(
            "--" + field.name.replace("_", "-"), type=type(default), default=default, help=f"default {default}"
        )
    parsed = vars(parser.parse_args(arguments))
    values = {field.name: parsed.pop(field.name) for field in dataclasses.fields(Recipe)}
    parsed["work"] = parsed["work"] or parsed["output"] / "run"
    return Options(recipe=Recipe(**values), **parsed)
