"""Which tensors hold a quantised weight, of which types and shapes, and how they become a `QuantisedWeight`.

Sources: compressed-tensors 0.20 (compressors/), AutoAWQ (modules/linear/gemm.py), AutoGPTQ and GPTQModel (qlinear/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, shown
from slipstream_kernels.models.checkpoint.quantisation.scheme import BLOCK, Layout, Strategy, WeightScheme
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, paired

SCALES = ("F32", "F16", "BF16")
_FP8, _WORDS, _SHORT = ("F8_E4M3",), ("I32",), ("I8",)
_WORD_BITS = 32

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns each half byte of a word holds, from the lowest."""

LARGEST_SCALE = 2.0**90
LEAST_SCALE = 2.0**-90
"""Beyond these, products might leave float32's normal numbers, which not every device keeps."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that a checkpoint has: types and shapes that it may have; optional ones may be missing."""

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    optional: bool = False


def stored_tensors(scheme: WeightScheme, outputs: int, inputs: int, where: str) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of a weight [outputs, inputs], by what follows the module's name and a dot.

    Raises CheckpointError for a weight of which the scheme cannot be.
    """
    groups = _groups(scheme, inputs, where)
    per_word = _WORD_BITS // scheme.bits
    if scheme.layout in ("float", "int"):
        yield "weight", StoredTensor(_FP8 if scheme.layout == "float" else _SHORT, ((outputs, inputs),))
        yield scheme.scale, StoredTensor(SCALES, _scale_shapes(scheme.strategy, outputs, groups))
        yield "input_scale", StoredTensor(SCALES, ((), (1,)), optional=True)
        yield "input_zero_point", StoredTensor((*_FP8, *_SHORT), ((), (1,)), optional=True)
        zeros = _scale_shapes(scheme.strategy, outputs, groups)
        yield "weight_zero_point", StoredTensor((*_FP8, *_SHORT), zeros, optional=scheme.symmetric)
    elif scheme.layout == "pack":
        yield "weight_packed", StoredTensor(_WORDS, ((outputs, -(-inputs // per_word)),))
        yield scheme.scale, StoredTensor(SCALES, _scale_shapes(scheme.strategy, outputs, groups))
        yield "weight_shape", StoredTensor(("I64", "I32"), ((2,),))
        if not scheme.symmetric:
            yield "weight_zero_point", StoredTensor(_WORDS, ((-(-outputs // per_word), groups),))
    else:
        if outputs % per_word:
            raise CheckpointError(f"{where}: {outputs} outputs do not fill words of {per_word}")
        rows = (inputs, outputs // per_word) if scheme.layout == "awq" else (inputs // per_word, outputs)
        yield "qweight", StoredTensor(_WORDS, (rows,))
        yield "qzeros", StoredTensor(_WORDS, ((groups, outputs // per_word),))
        yield scheme.scale, StoredTensor(SCALES, ((groups, outputs),))
        if scheme.layout == "gptq":
            yield "g_idx", StoredTensor(_WORDS, ((inputs,),), optional=True)


def _groups(scheme: WeightScheme, inputs: int, where: str) -> int:
    group = scheme.group_of(inputs)
    if scheme.strategy == "group" and inputs % group:
        raise CheckpointError(f"{where}: {inputs} inputs are not a multiple of group_size, {group}")
    return -(-inputs // group)


def _scale_shapes(strategy: Strategy, outputs: int, groups: int) -> tuple[tuple[int, ...], ...]:
    whole, rows = ((), (1,)), ((outputs, 1), (outputs,))
    if strategy == "block":
        return ((-(-outputs // BLOCK), groups),)
    if strategy == "group":
        return ((outputs, groups),)
    return {"tensor": whole, "channel": rows}.get(strategy, (*whole, *rows))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A weight [outputs, inputs] as it is stored, and the name of its module."""

    scheme: WeightScheme
    tensors: Mapping[str, torch.Tensor]
    outputs: int
    inputs: int
    module: str

    def by_row(self, groups: torch.Tensor) -> torch.Tensor:
        """[outputs, groups of a row] of scales or zero points that are not stored column by column."""
        if self.scheme.strategy == "block":
            return groups.repeat_interleave(BLOCK, 0)[: self.outputs]
        return groups if self.scheme.strategy == "group" else groups.reshape(-1, 1).expand(self.outputs, 1)


_Unpacked = tuple[torch.Tensor, torch.Tensor | None]
"""Codes as a `QuantisedWeight` has them, of `outputs` rows, and zero points [outputs, groups]."""


def quantised_weight(
    scheme: WeightScheme, tensors: Mapping[str, torch.Tensor], outputs: int, inputs: int, module: str
) -> QuantisedWeight:
    """The weight that `stored_tensors` hold. Raises CheckpointError where they contradict one another."""
    stored = _Stored(scheme, tensors, outputs, inputs, module)
    number = scheme.number
    codes, zeros = _UNPACK[scheme.layout](stored)
    scales = tensors[scheme.scale]
    scales = scales.t() if scheme.layout in ("awq", "gptq") else stored.by_row(scales)
    _check_scales(scales, f"{module}.{scheme.scale}")
    return QuantisedWeight(number, codes.contiguous(), scales.contiguous(), zeros, scheme.group_of(inputs))


def _float(stored: _Stored) -> _Unpacked:
    codes = stored.tensors["weight"].view(torch.uint8)
    _check_symmetric(stored)
    if ((codes & 0x7F) == 0x7F).any():
        raise CheckpointError(f"{stored.module}.weight holds NaN")
    return codes, None


def _int(stored: _Stored) -> _Unpacked:
    codes = stored.tensors["weight"].view(torch.uint8) ^ 0x80
    if stored.scheme.symmetric:
        _check_symmetric(stored)
        return codes, None
    zeros = stored.tensors["weight_zero_point"]
    if zeros.dtype != torch.int8:
        raise CheckpointError(f"{stored.module}.weight_zero_point is not of whole numbers")
    return codes, stored.by_row(zeros).to(torch.int16) + 128


def _check_symmetric(stored: _Stored) -> None:
    zeros = stored.tensors.get("weight_zero_point")
    if zeros is not None and zeros.float().any():
        raise CheckpointError(f"{stored.module}.weight_zero_point is not zero, of a symmetric weight")


def _pack(stored: _Stored) -> _Unpacked:
    outputs, inputs, bits = stored.outputs, stored.inputs, stored.scheme.bits
    shape = stored.tensors["weight_shape"].tolist()
    if shape != [outputs, inputs]:
        raise CheckpointError(f"{stored.module}.weight_shape holds {shown(shape)}, expected {[outputs, inputs]}")
    # Bits of a word that come first are those of its first byte, so that the bytes are the codes, or pairs of them.
    codes = stored.tensors["weight_packed"].contiguous().view(torch.uint8)[:, : inputs * bits // 8]
    if stored.scheme.symmetric:
        return codes, None
    return codes, _unpacked(stored.tensors["weight_zero_point"], bits, 0)[:outputs].to(torch.int16)


def _awq(stored: _Stored) -> _Unpacked:
    place = torch.tensor([_AWQ_COLUMNS.index(column) for column in range(len(_AWQ_COLUMNS))])
    order = (torch.arange(0, stored.outputs, len(place))[:, None] + place).flatten()
    codes, zeros = (_unpacked(stored.tensors[name], stored.scheme.bits, 1)[:, order] for name in ("qweight", "qzeros"))
    return _of_columns(codes, stored), zeros.t().to(torch.int16).contiguous()


def _gptq(stored: _Stored) -> _Unpacked:
    order, inputs = stored.tensors.get("g_idx"), stored.inputs
    if order is not None and not torch.equal(
        order.long().cpu(), torch.arange(inputs) // stored.scheme.group_of(inputs)
    ):
        raise CheckpointError(
            f"{stored.module}.g_idx is not in the order of columns (desc_act), which is not supported"
        )
    codes = _unpacked(stored.tensors["qweight"], stored.scheme.bits, 0)
    zeros = _unpacked(stored.tensors["qzeros"], stored.scheme.bits, 1).t().to(torch.int16) + stored.scheme.zero_offset
    return _of_columns(codes, stored), zeros.contiguous()


def _of_columns(codes: torch.Tensor, stored: _Stored) -> torch.Tensor:
    """Of codes [inputs, outputs], a byte each."""
    return paired(codes.t()) if stored.scheme.number == "int4" else codes.t()


_UNPACK: Mapping[Layout, Callable[[_Stored], _Unpacked]] = {
    "float": _float,
    "int": _int,
    "pack": _pack,
    "awq": _awq,
    "gptq": _gptq,
}


def _unpacked(words: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """uint8 of int32 words [n, m], whose lowest bits come first along `dim`."""
    per_word = _WORD_BITS // bits
    parts = [((words >> (bits * index)) & ((1 << bits) - 1)).to(torch.uint8) for index in range(per_word)]
    return torch.stack(parts, dim + 1).flatten(dim, dim + 1)


def _check_scales(scales: torch.Tensor, where: str) -> None:
    sizes = scales.float().abs()
    outside = ~((sizes == 0) | ((sizes >= LEAST_SCALE) & (sizes <= LARGEST_SCALE)))
    if outside.any():
        value = scales[outside].flatten()[0].item()
        raise CheckpointError(f"{where} holds {value:g}, must be 0 or of a size from 2^-90 to 2^90")
