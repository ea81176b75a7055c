"""The shape of a widened model as flags of a command."""

from __future__ import annotations

import argparse

from benchmarks.inflate.shape import LLAMA_8B, Shape


def add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that `shape_of` reads."""
    shape = LLAMA_8B
    parser.add_argument("--hidden", type=int, default=shape.hidden_size, help="hidden size (%(default)s)")
    parser.add_argument("--layers", type=int, default=shape.num_layers, help="layers (%(default)s)")
    parser.add_argument("--heads", type=int, default=shape.num_heads, help="query heads (%(default)s)")
    parser.add_argument("--kv-heads", type=int, default=shape.num_kv_heads, help="key and value heads (%(default)s)")
    parser.add_argument("--head-dim", type=int, default=shape.head_dim, help="size of a head (%(default)s)")
    parser.add_argument("--intermediate", type=int, default=shape.intermediate_size, help="feed-forward (%(default)s)")
    parser.add_argument("--vocab", type=int, default=shape.vocab_size, help="vocabulary (%(default)s)")
    parser.add_argument("--context", type=int, default=shape.max_context, help="longest context (%(default)s)")


def shape_of(options: argparse.Namespace) -> Shape:
    """The shape that the flags of `add_shape_arguments` describe."""
    return Shape(
        hidden_size=options.hidden,
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        intermediate_size=options.intermediate,
        vocab_size=options.vocab,
        max_context=options.context,
    )
