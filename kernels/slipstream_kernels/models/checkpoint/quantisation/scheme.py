"""How the weight of a linear layer is quantised, and which layers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream_kernels.models.checkpoint.quantisation.module_patterns import is_part, matches_name
from slipstream_kernels.ops.quantised_weight import Number

Layout = Literal["float", "int", "pack", "awq", "gptq"]
"""Which tensors hold a weight: see `layouts`."""
Strategy = Literal["tensor", "channel", "group", "block", "tensor or channel"]
"""What shares a scale: the weight, a row, `group` elements of a row, or a block of 128 rows of as many."""

BLOCK = 128
"""Rows and columns of a block."""
GROUPS = (32, 64, 128)
"""Elements of a group."""
LINEAR = "Linear"
"""The class of every module with a weight that may be quantised."""
HEAD_MODULE = "lm_head"
_WEIGHT_ONLY = "activations are not quantised here: config.json asks for {}, weights alone are held in fewer bits"
_OWN_SCALES = (
    "activations of layers in e4m3 are quantised to e4m3, each token's by a scale of its own; scales of the files "
    "(input_scale) are not used"
)


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How one weight is quantised.

    zero_offset: what is added to zero points as they are stored. scale: the name of the tensor of scales.
    """

    layout: Layout
    bits: int
    strategy: Strategy
    group: int = 0
    symmetric: bool = True
    zero_offset: int = 0
    scale: str = "weight_scale"

    @property
    def number(self) -> Number:
        """What a code is."""
        return "e4m3" if self.layout == "float" else "int8" if self.bits == 8 else "int4"

    def group_of(self, inputs: int) -> int:
        """Elements of a row that share a scale."""
        return {"group": self.group, "block": BLOCK}.get(self.strategy, inputs)


@dataclass(frozen=True, slots=True)
class Rule:
    """The scheme of modules that `entries` name, None of those that are not quantised.

    An entry is `LINEAR`, a name, `re:` and an expression, or, of `parts`, a run of the parts of a name.
    """

    entries: tuple[str, ...]
    scheme: WeightScheme | None
    parts: bool = False

    def covers(self, module: str) -> bool:
        """Whether an entry names a module."""
        match = is_part if self.parts else matches_name
        return any(entry == LINEAR or match(entry, module) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What config.json says. The first rule that covers a module counts.

    asked_activations: how it asks for activations of fewer bits. asked_cache: the field that asks for keys and values
    of fewer bits, and in vain. of_experts: experts alone are quantised, in the layout of `mxfp4`. cache: keys and
    values are of 8 bits, e4m3, with scales that the files have, or that follow from each row; None: they are not.
    fp8_activations: layers of e4m3 have activations in e4m3, as `served_config` settles.
    """

    method: str
    rules: tuple[Rule, ...]
    asked_activations: tuple[str, ...] = ()
    asked_cache: str = ""
    of_experts: bool = False
    cache: Literal["static", "dynamic"] | None = None
    fp8_activations: bool = False

    @property
    def notices(self) -> tuple[str, ...]:
        """Where the model is served otherwise than the file says, a line each."""
        lines = [_WEIGHT_ONLY.format(asked) for asked in self.asked_activations]
        if self.fp8_activations:
            lines = [_OWN_SCALES]
        if self.asked_cache:
            lines.append(f"keys and values are held as ever: config.json asks for fewer bits ({self.asked_cache})")
        return tuple(lines)

    def scheme_of(self, module: str) -> WeightScheme | None:
        """How the weight of a linear module is quantised; None: it is not."""
        return next((rule.scheme for rule in self.rules if rule.covers(module)), None)
