"""The shapes a small model is widened to, and how its residual stream is laid out in a wider one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.model_form import PLAIN


class ShapeError(ValueError):
    """A shape that a model cannot be widened to without changing its function."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a dense decoder, in elements; the context in tokens."""

    hidden_size: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    intermediate_size: int = 14336
    vocab_size: int = 128_256
    max_context: int = 131_072

    @property
    def group(self) -> int:
        """Query heads that share a key and value head."""
        return self.num_heads // self.num_kv_heads

    def config(self, source: ModelConfig) -> ModelConfig:
        """The configuration of `source` at this shape, its output layer no longer tied to the embedding."""
        return replace(
            source,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            max_context=self.max_context,
            tie_word_embeddings=False,
        )

    def config_json(self, source: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a config.json at this shape; all others are the source's."""
        return dict(source) | {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_context,
            "tie_word_embeddings": False,
        }


LLAMA_8B = Shape()
"""Llama-3.1-8B."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a residual stream of `source` coordinates lies in one of `target` coordinates.

    RMSNorm divides by the root of the mean of squares over all `target` coordinates. Padding with zeros would shrink
    that mean by source/target, and the norm weights would have to make up for its root, which bfloat16 cannot hold.
    So the stream is repeated instead, scaled: block 0 is the stream itself, block j is `scales[j]` times it, and the
    squares of all scales sum to target/source. The mean of squares is then the source's, and weights and epsilon
    stay as they are. Blocks other than 0 have norm weight 0, so nothing else reads them.

    All scales but the last are powers of two, which rounding to bfloat16 commutes with: those blocks are exact
    multiples at every step. The last block rounds on its own, and its roundings enter the mean of squares only: at
    4096 coordinates for 384 it holds 0.24 % of the mean.
    """

    source: int
    target: int
    scales: tuple[float, ...]

    @classmethod
    def layout(cls, source: int, target: int) -> Stream:
        """Raises ShapeError where `target` neither equals `source` nor has room for a copy and the mark."""
        if source == target:
            return cls(source, target, (1.0,))
        copies = (target - 1) // source - 1
        if copies < 1:
            raise ShapeError(f"hidden size {target} has no room for two streams of {source} and one coordinate more")
        scales = [1.0]
        left = target / source - 1.0
        while left > 0 and len(scales) <= copies:
            power = _power_of_four(left)
            if len(scales) == copies and power != left:
                scales.append(sqrt(left))
                break
            scales.append(sqrt(power))
            left -= power
        return cls(source, target, tuple(scales))

    @property
    def mark(self) -> int:
        """The last coordinate, which is outside all blocks where there are copies."""
        return self.target - 1


def _power_of_four(value: float) -> float:
    """The largest power of four that is at most `value`, which is positive."""
    power = 1.0
    while power > value:
        power /= 4
    while power * 4 <= value:
        power *= 4
    return power


def check(source: ModelConfig, shape: Shape) -> None:
    """Raise ShapeError unless a model of `source` fits into `shape`."""
    if source.form != PLAIN:
        raise ShapeError(f"models of the family {source.family} have tensors that are not widened")
    if shape.head_dim != source.head_dim:
        raise ShapeError(f"head_dim is {source.head_dim}, which cannot become {shape.head_dim}")
    if shape.num_heads % shape.num_kv_heads:
        raise ShapeError(f"{shape.num_heads} heads are no multiple of {shape.num_kv_heads} key heads")
    pairs = {
        "num_layers": (source.num_layers, shape.num_layers),
        "num_kv_heads": (source.num_kv_heads, shape.num_kv_heads),
        "heads for each key head": (source.num_heads // source.num_kv_heads, shape.group),
        "intermediate_size": (source.intermediate_size, shape.intermediate_size),
        "vocab_size": (source.vocab_size, shape.vocab_size),
        "max_context": (source.max_context, shape.max_context),
    }
    for name, (has, wanted) in pairs.items():
        if wanted < has:
            raise ShapeError(f"{name} is {has}, which cannot become {wanted}")
    stream = Stream.layout(source.hidden_size, shape.hidden_size)
    if shape.vocab_size > source.vocab_size and len(stream.scales) * source.hidden_size >= shape.hidden_size:
        raise ShapeError("a larger vocabulary needs a coordinate of the stream for itself: widen the hidden size")
