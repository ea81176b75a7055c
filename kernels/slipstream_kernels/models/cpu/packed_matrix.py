"""Weights of linear layers as the kernels on a CPU read them, and the records by which they find them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.models.cpu.expert_layers import MATRIX
from slipstream_kernels.ops.linear import pack_weight
from slipstream_kernels.ops.quantised.packing import PackedWeight, can_pack, pack_quantised
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode, stacked

Array = npt.NDArray[np.generic]
Weight = torch.Tensor | QuantisedWeight
Records = npt.NDArray[Any]
"""Of a structured type, whose fields are arrays."""
Packed = npt.NDArray[np.uint16] | PackedWeight

_log = logging.getLogger(__name__)


def dense(weight: Weight) -> torch.Tensor:
    """In bfloat16, or as it is."""
    return decode(weight) if isinstance(weight, QuantisedWeight) else weight


def matrices_of(layers: Iterable[Sequence[Weight]]) -> list[Packed | None]:
    """The parts of each layer above one another; None where there are none."""
    return [_matrix(parts) if parts else None for parts in layers]


def _matrix(parts: Sequence[Weight]) -> Packed:
    quantised = [part for part in parts if isinstance(part, QuantisedWeight)]
    whole = stacked(quantised) if len(quantised) == len(parts) else None
    if whole is not None and can_pack(whole):
        return pack_quantised(whole)
    if quantised:
        _log.info(
            "a layer of %s is decoded to bfloat16: its parts differ, or kernels do not take them", quantised[0].number
        )
    return pack_weight(torch.cat([dense(part) for part in parts]))


def records_of(packed: Sequence[Packed | None]) -> Records:
    """A `MATRIX` for each, of zeros for None; the weights must outlive it."""
    records = np.zeros(len(packed), MATRIX)
    for record, weight in zip(records, packed, strict=True):
        if isinstance(weight, PackedWeight):
            arrays = {"weight": weight.codes, "scales": weight.scales, "zeros": weight.zeros}
            for name, array in arrays.items():
                record[name] = array.ctypes.data
            record["kind"], record["group"] = weight.kind, weight.group
        elif weight is not None:
            record["weight"] = weight.ctypes.data
    return records
