"""The shapes a small model is widened to, and how its residual stream is laid out in a wider one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from benchmarks.inflate.shape_family import LLAMA4_SCOUT, family_json
from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.model_form import PLAIN

MOST_SETS = 8
"""Ways of drawing variants of experts, at most."""


class ShapeError(ValueError):
    """A shape that a model cannot be widened to without changing its function."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder, in elements; the context in tokens."""

    hidden_size: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    intermediate_size: int = 14336
    vocab_size: int = 128_256
    max_context: int = 131_072
    experts: int = 0
    """Of each layer, of `intermediate_size` each; 0: there are none."""
    experts_per_token: int = 0
    family: str = ""
    """`model_type` of a model whose weights are random, see `shape_family`; empty: that of the source."""

    @property
    def head(self) -> Shape:
        """Of an EAGLE-3 head's layer for a model of this shape; a mixture's is dense, three times the hidden size."""
        if not self.experts:
            return self
        return replace(self, experts=0, experts_per_token=0, intermediate_size=3 * self.hidden_size)

    @property
    def group(self) -> int:
        """Query heads that share a key and value head."""
        return self.num_heads // self.num_kv_heads

    def config(self, source: ModelConfig) -> ModelConfig:
        """The configuration of `source` at this shape, its output layer no longer tied to the embedding."""
        form = source.form
        if form.experts is not None and self.experts:
            experts = replace(
                form.experts,
                count=self.experts,
                chosen=self.experts_per_token,
                size=self.intermediate_size,
                layers=(True,) * self.num_layers,
            )
            form = replace(form, experts=experts)
        return replace(
            source,
            form=form,
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
        """The fields of a config.json at this shape; all others are the source's, or those of the family."""
        if self.family:
            return family_json(self, source)
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
            **(self._expert_fields(source) if self.experts else {}),
        }

    def _expert_fields(self, source: Mapping[str, Any]) -> dict[str, Any]:
        if "num_experts" not in source:
            return {
                "architectures": ["MixtralForCausalLM"],
                "model_type": "mixtral",
                "num_local_experts": self.experts,
                "num_experts_per_tok": self.experts_per_token,
            }
        return {
            "num_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token,
            "moe_intermediate_size": self.intermediate_size,
        }


LLAMA_8B = Shape()
"""Llama-3.1-8B."""
QWEN3_30B_A3B = Shape(2048, 48, 32, 4, 128, 768, 151_936, 40_960, experts=128, experts_per_token=8)
"""Qwen3-30B-A3B."""
GPT_OSS_20B = Shape(2880, 24, 32, 4, 128, 2880, 201_088, 131_072, experts=32, experts_per_token=4)
"""gpt-oss-20b, with half as many heads of twice the size, in bfloat16, without biases, sinks and windows."""
LLAMA_4_SCOUT = Shape(
    5120, 48, 40, 8, 128, 8192, 202_048, 131_072, experts=16, experts_per_token=1, family=LLAMA4_SCOUT
)
"""Llama-4-Scout-17B-16E: 109 B parameters, each layer's shared expert as large as the others; its context cut short."""
SHAPES = {
    "llama-3.1-8b": LLAMA_8B,
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "gpt-oss-20b": GPT_OSS_20B,
    "llama-4-scout": LLAMA_4_SCOUT,
}


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


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """How a layer's experts become more of them without another sum.

    Each is there `copies` times, all of which are chosen where it is chosen, and each of these in `variants`, one of
    which a token may choose: so that text wakes all experts and not a part. Clone `copy` of expert e in variant v is
    expert (e * variants + v) * copies + copy. Which variant that is follows from the token's id, by one of `sets` ways
    of drawing it, in turn by layer. For each way a token's embedding sets the coordinates of all variants but its own,
    from `first` on; no layer writes them, and the router alone reads them.
    """

    copies: int
    variants: int
    sets: int
    first: int

    @classmethod
    def of(cls, experts: ExpertForm, shape: Shape, stream: Stream) -> ExpertLayout:
        """Raises ShapeError where a model's experts cannot become those of `shape`."""
        plain = experts.normalised and not (experts.shared_size or experts.biased or experts.limit)
        if not plain or not all(experts.layers):
            raise ShapeError("only experts of all layers, with shares among those chosen and nothing else, are widened")
        copies, rest = divmod(shape.experts_per_token, experts.chosen)
        variants, left = divmod(shape.experts, experts.count * max(1, copies))
        if copies < 1 or rest or variants < 1 or left:
            raise ShapeError(
                f"{experts.chosen} of {experts.count} experts cannot become {shape.experts_per_token} of "
                f"{shape.experts}: both must be multiples, that of the experts one of the other"
            )
        first = len(stream.scales) * stream.source
        sets = min(MOST_SETS, max(0, stream.mark - first) // variants) if variants > 1 else 0
        if variants > 1 and not sets:
            raise ShapeError(
                f"hidden size {shape.hidden_size} has no room for a coordinate of each of {variants} variants"
            )
        return cls(copies, variants, sets, first)

    @property
    def marks(self) -> slice:
        """All coordinates that tell variants."""
        return slice(self.first, self.first + self.sets * self.variants)


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
    if shape.family:
        raise ShapeError(f"a {shape.family} has tensors that are not widened: its weights are to be random (--random)")
    experts = source.form.experts
    known = [replace(PLAIN, head_norms=norms, experts=experts) for norms in (False, True)]
    if source.form not in known or source.fused_experts:
        raise ShapeError(f"models of the family {source.family} have tensors that are not widened")
    if (experts is not None) != bool(shape.experts):
        raise ShapeError(f"{shape.experts} experts are wanted of a model of {0 if experts is None else experts.count}")
    if shape.head_dim != source.head_dim:
        raise ShapeError(f"head_dim is {source.head_dim}, which cannot become {shape.head_dim}")
    if shape.num_heads % shape.num_kv_heads:
        raise ShapeError(f"{shape.num_heads} heads are no multiple of {shape.num_kv_heads} key heads")
    pairs = {
        "num_layers": (source.num_layers, shape.num_layers),
        "num_kv_heads": (source.num_kv_heads, shape.num_kv_heads),
        "heads for each key head": (source.num_heads // source.num_kv_heads, shape.group),
        "intermediate_size": (source.intermediate_size if experts is None else experts.size, shape.intermediate_size),
        "vocab_size": (source.vocab_size, shape.vocab_size),
        "max_context": (source.max_context, shape.max_context),
    }
    for name, (has, wanted) in pairs.items():
        if wanted < has:
            raise ShapeError(f"{name} is {has}, which cannot become {wanted}")
    stream = Stream.layout(source.hidden_size, shape.hidden_size)
    if experts is not None:
        ExpertLayout.of(experts, shape, stream)
    if shape.vocab_size > source.vocab_size and len(stream.scales) * source.hidden_size >= shape.hidden_size:
        raise ShapeError("a larger vocabulary needs a coordinate of the stream for itself: widen the hidden size")
