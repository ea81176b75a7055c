"""Quantised forms of small models, beside the bfloat16 folder of what they decode to, both written plainly by numpy.

The writers share no code with what reads them: they pack element by element, as the formats' authors describe them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Quantised:
    """Codes of a weight as they are stored, zero points and scales by element, and its tensors by part of the name."""

    values: np.ndarray
    """float32 [N, K]: code - zero."""
    scales: np.ndarray
    """float32 [N, K]"""
    tensors: Tensors


Write = Callable[[np.ndarray, np.random.Generator], Quantised]


@dataclass(frozen=True, slots=True)
class Form:
    """A way of storing weights: what config.json says, and what writes a weight."""

    config: Mapping[str, Any]
    write: Write
    ignore: tuple[str, ...] = field(default=("lm_head",))


def decoded(quantised: Quantised) -> torch.Tensor:
    """The product in float32, rounded to bfloat16 by its bits."""
    product = (quantised.values.astype(np.float32) * quantised.scales.astype(np.float32)).view(np.uint32)
    rounded = ((product.astype(np.uint64) + 0x7FFF + ((product >> 16) & 1)) >> 16).astype(np.uint16)
    return torch.from_numpy(rounded).view(torch.bfloat16)


def by_element(groups: np.ndarray, shape: tuple[int, int], rows: int, columns: int) -> np.ndarray:
    """The value of the block of `rows` x `columns` that each element lies in."""
    return np.repeat(np.repeat(groups, rows, 0), columns, 1)[: shape[0], : shape[1]]


def random_scales(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, size: float) -> torch.Tensor:
    """Positive, of about `size`, in a type of few bits."""
    return torch.from_numpy(rng.uniform(0.3, 1.7, shape).astype(np.float32) * size).to(dtype)


def packed_words(codes: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """int32 [n, ceil(m / per word)] of codes [n, m], the lowest bits first; `order`: which element each place has."""
    per_word = 32 // bits
    order = tuple(range(per_word)) if order is None else order
    rows, columns = codes.shape
    words = np.zeros((rows, -(-columns // per_word)), np.uint32)
    for word in range(words.shape[1]):
        for place, element in enumerate(order):
            if word * per_word + element < columns:
                words[:, word] |= codes[:, word * per_word + element].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(words.view(np.int32))


def _float(strategy: str, dtype: torch.dtype, name: str = "weight_scale") -> Write:
    def write(weight: np.ndarray, rng: np.random.Generator) -> Quantised:
        outputs, inputs = weight.shape
        shapes = {"tensor": (1, 1), "channel": (outputs, 1), "block": (-(-outputs // 128), -(-inputs // 128))}
        scales = random_scales(rng, shapes[strategy], dtype, 2.0**-8)
        wide = scales.float().numpy()
        spans = {"tensor": (outputs, inputs), "channel": (1, inputs), "block": (128, 128)}
        spread = by_element(wide, weight.shape, *spans[strategy])
        codes = torch.from_numpy(np.clip(weight / spread, -448, 448)).to(torch.float8_e4m3fn)
        stored = scales.reshape(()) if strategy == "tensor" else scales
        return Quantised(codes.float().numpy(), spread, {"weight": codes, name: stored})

    return write


def _integers(weight: np.ndarray, rng: np.random.Generator, bits: int, group: int, *, zeros: bool) -> Any:
    """Codes [N, K], scales (float32 tensor) and zero points, both [N, groups]."""
    outputs, inputs = weight.shape
    group = group or inputs
    half = 1 << (bits - 1)
    scales = random_scales(rng, (outputs, inputs // group), torch.float16, 2.0 ** (-1 - bits))
    points = np.full(scales.shape, half, np.int64)
    if zeros:
        points = rng.integers(0, 2 * half, scales.shape)
    spread, zero = (
        by_element(scales.float().numpy(), weight.shape, 1, group),
        by_element(points, weight.shape, 1, group),
    )
    codes = np.clip(np.rint(weight / spread) + zero, 0, 2 * half - 1).astype(np.int64)
    return codes, scales, points, Quantised((codes - zero).astype(np.float32), spread, {})


def _int8(*, zeros: bool = False) -> Write:
    def write(weight: np.ndarray, rng: np.random.Generator) -> Quantised:
        codes, scales, points, made = _integers(weight, rng, 8, 0, zeros=zeros)
        made.tensors["weight"] = torch.from_numpy((codes - 128).astype(np.int8))
        made.tensors["weight_scale"] = scales
        if zeros:
            made.tensors["weight_zero_point"] = torch.from_numpy((points - 128).astype(np.int8))
        return made

    return write


def _pack(bits: int, group: int, *, zeros: bool = False, dtype: torch.dtype = torch.float16) -> Write:
    def write(weight: np.ndarray, rng: np.random.Generator) -> Quantised:
        codes, scales, points, made = _integers(weight, rng, bits, group, zeros=zeros)
        assert torch.equal(scales.to(dtype).float(), scales.float()) or dtype is torch.bfloat16
        if dtype is torch.bfloat16:
            scales = scales.to(dtype)
            spread = by_element(scales.float().numpy(), weight.shape, 1, group or weight.shape[1])
            made = Quantised(made.values, spread, {})
        made.tensors["weight_packed"] = packed_words(codes, bits)
        made.tensors["weight_scale"] = scales
        made.tensors["weight_shape"] = torch.tensor(weight.shape)
        if zeros:
            made.tensors["weight_zero_point"] = packed_words(points.T, bits).T.contiguous()
        return made

    return write


def _awq(group: int) -> Write:
    def write(weight: np.ndarray, rng: np.random.Generator) -> Quantised:
        codes, scales, points, made = _integers(weight, rng, 4, group, zeros=True)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        made.tensors["qweight"] = packed_words(codes.T, 4, order)
        made.tensors["qzeros"] = packed_words(points.T, 4, order)
        made.tensors["scales"] = scales.t().contiguous()
        return made

    return write


def _gptq(bits: int, group: int, offset: int, *, zeros: bool = True) -> Write:
    def write(weight: np.ndarray, rng: np.random.Generator) -> Quantised:
        codes, scales, points, made = _integers(weight, rng, bits, group, zeros=zeros)
        if offset and zeros:  # zero points from 1 on: what is stored is one less
            shifted = points + 1
            spread = by_element(shifted, weight.shape, 1, group or weight.shape[1])
            made = Quantised((codes - spread).astype(np.float32), made.scales, {})
            points = shifted
        made.tensors["qweight"] = _along_rows(codes.T, bits)
        made.tensors["qzeros"] = packed_words((points - offset).T, bits)
        made.tensors["scales"] = scales.t().contiguous()
        made.tensors["g_idx"] = (torch.arange(weight.shape[1]) // (group or weight.shape[1])).int()
        return made

    return write


def _along_rows(codes: np.ndarray, bits: int) -> torch.Tensor:
    return packed_words(codes.T, bits).T.contiguous()


def _compressed(form: str, weights: Mapping[str, Any], **group: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": dict(weights), **group}},
    }


def _ints(bits: int, group: int | None, *, symmetric: bool = True) -> dict[str, Any]:
    strategy = "group" if group else "channel"
    return {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": symmetric, "group_size": group or -1}


def _floats(strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, **more}


def _gptq_config(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": True, **changes}


_FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}

FORMS: dict[str, Form] = {
    "fp8 block": Form(_FP8_BLOCK, _float("block", torch.float32, "weight_scale_inv")),
    "fp8 tensor": Form({"quant_method": "fp8", "activation_scheme": "static"}, _float("tensor", torch.float32)),
    "float channel": Form(
        _compressed("float-quantized", _floats("channel"), input_activations={"num_bits": 8, "type": "float"}),
        _float("channel", torch.bfloat16),
    ),
    "float block": Form(
        _compressed("float-quantized", _floats("block", block_structure=[128, 128])), _float("block", torch.bfloat16)
    ),
    "int8": Form(_compressed("int-quantized", _ints(8, None)), _int8()),
    "int8 zeros": Form(_compressed("int-quantized", _ints(8, None, symmetric=False)), _int8(zeros=True)),
    "pack8 g32": Form(_compressed("pack-quantized", _ints(8, 32)), _pack(8, 32)),
    "pack4 g32": Form(_compressed("pack-quantized", _ints(4, 32)), _pack(4, 32)),
    "pack4 g64 zeros": Form(
        _compressed("pack-quantized", _ints(4, 64, symmetric=False)), _pack(4, 64, zeros=True, dtype=torch.bfloat16)
    ),
    "pack4 channel": Form(_compressed("pack-quantized", _ints(4, None)), _pack(4, 0)),
    "pack4 channel zeros": Form(
        _compressed("pack-quantized", _ints(4, None, symmetric=False)), _pack(4, 0, zeros=True)
    ),
    "awq g64": Form({**_AWQ, "group_size": 64}, _awq(64)),
    "awq g32": Form({**_AWQ, "group_size": 32}, _awq(32)),
    "awq channel": Form({**_AWQ, "group_size": -1}, _awq(0)),
    "gptq g64": Form(_gptq_config(), _gptq(4, 64, 1, zeros=False)),
    "gptq asymmetric": Form(_gptq_config(sym=False, group_size=32), _gptq(4, 32, 1)),
    "gptq v2": Form(_gptq_config(sym=False, checkpoint_format="gptq_v2"), _gptq(4, 64, 0)),
    "gptq 8 bits": Form(_gptq_config(bits=8, group_size=-1), _gptq(8, 0, 1)),
}

LARGE_GROUPS: dict[str, Form] = {
    "pack4 g128": Form(_compressed("pack-quantized", _ints(4, 128)), _pack(4, 128, dtype=torch.bfloat16)),
    "awq g128": Form({**_AWQ, "group_size": 128}, _awq(128)),
}
"""Of models whose inputs are multiples of 128."""


def is_quantised(name: str, shape: torch.Size, ignore: tuple[str, ...]) -> bool:
    """Whether a tensor is the weight of a linear module that is not left out."""
    return len(shape) == 2 and "embed" not in name and not any(part in name for part in ignore)


def write_quantised(
    source: Path, target: Path, form: Form, *, seed: int = 0, config: Mapping[str, Any] | None = None
) -> Path:
    """`target`: the model in `source`, in one file, in another form; `target`-plain: the same, decoded to bfloat16."""
    rng = np.random.default_rng(seed)
    plain = target.with_name(f"{target.name}-plain")
    for folder in (target, plain):
        shutil.copytree(source, folder)
    stored: Tensors = {}
    bare: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not is_quantised(name, tensor.shape, form.ignore):
            stored[name] = bare[name] = tensor
            continue
        made = form.write(tensor.float().numpy(), rng)
        bare[name] = decoded(made)
        stored |= {f"{name.removesuffix('weight')}{part}": each.contiguous() for part, each in made.tensors.items()}
    save_file(stored, target / "model.safetensors")
    save_file(bare, plain / "model.safetensors")
    said = json.loads((target / "config.json").read_text())
    said["quantization_config"] = dict(form.config if config is None else config)
    (target / "config.json").write_text(json.dumps(said))
    return target
