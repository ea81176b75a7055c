"""The shape of a widened model as flags of a command."""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks.inflate.shape import SHAPES, Shape
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.quantisation.scheme import GROUPS

_FLAGS = {
    "hidden": ("hidden_size", "hidden size"),
    "layers": ("num_layers", "layers"),
    "heads": ("num_heads", "query heads"),
    "kv-heads": ("num_kv_heads", "key and value heads"),
    "head-dim": ("head_dim", "size of a head"),
    "intermediate": ("intermediate_size", "feed-forward, or of each expert"),
    "vocab": ("vocab_size", "vocabulary"),
    "context": ("max_context", "longest context"),
    "experts": ("experts", "experts of a layer, of a model that has some"),
    "experts-per-token": ("experts_per_token", "experts that a token has"),
}


def add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that `shape_of` reads."""
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b", help="of a known model (%(default)s)")
    for flag, (_, text) in _FLAGS.items():
        parser.add_argument(f"--{flag}", type=int, help=f"{text} (that of --shape)")


def add_format_arguments(parser: argparse.ArgumentParser, *more: str) -> None:
    """The flags that `format_of` reads; `more` formats are the command's own."""
    formats, group = ("fp8", "w4a16", *more), RoundedFormat("w4a16").group
    parser.add_argument(
        "--format", choices=formats, help="to which linear layers are rounded, as by `slipstream quantize`"
    )
    parser.add_argument("--group", type=int, choices=GROUPS, default=group, help="elements of a group of w4a16 [128]")


def format_of(options: argparse.Namespace) -> RoundedFormat | None:
    """What the flags of `add_format_arguments` ask for; None: bfloat16."""
    return None if options.format is None else RoundedFormat(options.format, options.group)


def shape_of(options: argparse.Namespace) -> Shape:
    """The shape that the flags of `add_shape_arguments` describe."""
    given = {field: getattr(options, flag.replace("-", "_")) for flag, (field, _) in _FLAGS.items()}
    return replace(SHAPES[options.shape], **{field: size for field, size in given.items() if size is not None})
