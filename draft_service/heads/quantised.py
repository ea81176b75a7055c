"""Quantised weights of a head: which tensors hold them, and the bfloat16 that they decode to.

Formats and their limits are those of models (`slipstream_kernels.models.checkpoint.quantisation`). A head is small, so
that it is computed with as it decodes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import torch

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.quantisation.layouts import quantised_weight, stored_tensors
from slipstream_kernels.models.checkpoint.quantisation.quantisation_config import read_quantisation
from slipstream_kernels.models.checkpoint.quantisation.scheme import Quantisation, WeightScheme
from slipstream_kernels.ops.quantised_weight import decode

_log = logging.getLogger(__name__)

Modules = Mapping[str, WeightScheme]
"""Linear modules whose weights are quantised, and how."""

_PARTS = frozenset(
    (
        *("weight", "weight_packed", "weight_shape", "weight_scale", "weight_scale_inv", "weight_zero_point"),
        *("input_scale", "input_zero_point", "qweight", "qzeros", "scales", "g_idx"),
    )
)
"""What names of tensors that belong to such a weight end in."""
_TYPES = {
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
}


def head_quantisation(*configs: Mapping[str, Any]) -> Quantisation | None:
    """What a head's config.json, or a part of it, says of quantised weights; None: there are none.

    Raises CheckpointError for what is not supported.
    """
    for config in configs:
        if (found := read_quantisation(config)) is None:
            continue
        if found.of_experts:
            raise CheckpointError(f"config.json: quant_method {found.method} is for experts, which heads here have not")
        for notice in found.notices:
            _log.info("%s", notice)
        return found
    return None


def quantised_modules(names: Collection[str], quantisation: Quantisation | None) -> Modules:
    """Those among the modules of tensors called `names` that have scales."""
    if quantisation is None:
        return {}
    schemes = {module: quantisation.scheme_of(module) for module, _, _ in (name.rpartition(".") for name in names)}
    known = set(names)
    return {module: scheme for module, scheme in schemes.items() if scheme and f"{module}.{scheme.scale}" in known}


def decoded_name(name: str, modules: Modules) -> str:
    """The tensor that a stored one becomes, or a part of it: the weight of a quantised module, else itself."""
    module, _, part = name.rpartition(".")
    return f"{module}.weight" if module in modules and part in _PARTS else name


def decoded_tensors(stored: Mapping[str, torch.Tensor], modules: Modules) -> dict[str, torch.Tensor]:
    """Stored tensors with the weights of `modules` decoded, bfloat16 [outputs, inputs]. Raises CheckpointError."""
    tensors: dict[str, torch.Tensor] = {}
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in stored.items():
        module, _, part = name.rpartition(".")
        if module in modules and part in _PARTS:
            parts.setdefault(module, {})[part] = tensor
        elif tensor.dtype == torch.float8_e4m3fn:
            raise CheckpointError(f"{name} has dtype F8_E4M3, and no scale that config.json tells of")
        else:
            tensors[name] = tensor
    return tensors | {f"{module}.weight": _weight(module, modules[module], held) for module, held in parts.items()}


def _weight(module: str, scheme: WeightScheme, held: Mapping[str, torch.Tensor]) -> torch.Tensor:
    outputs, inputs = _shape(module, scheme, held)
    expected = dict(stored_tensors(scheme, outputs, inputs, module))
    if unexpected := held.keys() - expected.keys():
        raise CheckpointError(f"unexpected tensor {module}.{min(unexpected)}")
    for part, one in expected.items():
        tensor = held.get(part)
        if tensor is None:
            if not one.optional:
                raise CheckpointError(f"missing tensor {module}.{part}")
        elif _TYPES.get(tensor.dtype) not in one.dtypes or tuple(tensor.shape) not in one.shapes:
            wanted = f"{' or '.join(one.dtypes)} of shape {' or '.join(str(list(shape)) for shape in one.shapes)}"
            found = f"{_TYPES.get(tensor.dtype, tensor.dtype)} of shape {list(tensor.shape)}"
            raise CheckpointError(f"{module}.{part} is {found}, expected {wanted}")
    return decode(quantised_weight(scheme, held, outputs, inputs, module))


def _shape(module: str, scheme: WeightScheme, held: Mapping[str, torch.Tensor]) -> tuple[int, int]:
    """(outputs, inputs), as the codes or what lies beside them say."""
    name = {"float": "weight", "int": "weight", "pack": "weight_shape"}.get(scheme.layout, "qweight")
    tensor = held.get(name)
    if tensor is None:
        raise CheckpointError(f"missing tensor {module}.{name}")
    if name == "weight_shape":
        if tensor.shape != (2,) or tensor.dtype not in (torch.int64, torch.int32):
            raise CheckpointError(
                f"{module}.{name} is {tensor.dtype} of shape {list(tensor.shape)}, expected two integers"
            )
        outputs, inputs = tensor.tolist()
        return outputs, inputs
    if tensor.ndim != 2:
        raise CheckpointError(f"{module}.{name} has shape {list(tensor.shape)}, which is no weight's")
    rows, columns = tensor.shape
    per_word = 32 // scheme.bits
    if scheme.layout == "awq":
        return columns * per_word, rows
    return (columns, rows * per_word) if scheme.layout == "gptq" else (rows, columns)
