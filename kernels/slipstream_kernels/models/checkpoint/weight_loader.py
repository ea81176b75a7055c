"""Tensors of a Hugging Face folder with safetensors."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, regular_size, shown
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.layouts import StoredTensor, quantised_weight, stored_tensors
from slipstream_kernels.models.checkpoint.quantisation.mxfp4 import BLOCKS, SCALES, mxfp4_weights
from slipstream_kernels.models.checkpoint.quantisation.scheme import WeightScheme
from slipstream_kernels.models.checkpoint.tensor_names import (
    computed,
    expected_shapes,
    stored_as_computed,
    stored_name,
    stored_shapes,
)
from slipstream_kernels.models.checkpoint.text_part import OTHER_PREFIXES, has_other_parts, text_prefix
from slipstream_kernels.models.checkpoint.tied_head import EMBEDDING, HEAD
from slipstream_kernels.models.checkpoint.weight_file import (
    FLOATS,
    INTEGERS,
    QUANTISED,
    WeightFile,
    open_weights,
    weight_files,
)
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode

__all__ = [
    "check_headers",
    "expected_shapes",
    "iterate_tensors",
    "iterate_weights",
    "load_tensors",
    "load_weights",
    "mtp_prefixes",
    "quantised_elements",
    "stored_as_computed",
    "stored_shapes",
    "used_names",
    "weight_bytes",
    "weight_files",
]

_DERIVED = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
"""Buffers that some files hold and that the config determines."""
_CACHE_SCALES = re.compile(r"model\.layers\.\d+\.self_attn\.([kvq]|prob|[kvq]_proj\.([kvq]|output))_scale")
"""Scales of keys, values and what attention makes of them, which some quantised files hold."""
_WEIGHT = ".weight"
_BYTES = FLOATS | INTEGERS | QUANTISED


@dataclass(frozen=True, slots=True)
class _Module:
    """A linear module whose weight [outputs, inputs] is quantised, and the tensors that may hold it."""

    name: str
    outputs: int
    inputs: int
    scheme: WeightScheme
    stored: Mapping[str, StoredTensor]


def weight_bytes(folder: Path, config: ModelConfig) -> int:
    """Bytes of the files of `weight_files`, less those of tensors that the model does not use.

    Raises CheckpointError.
    """
    total = 0
    for path in weight_files(folder):
        total += regular_size(path)
        with open_weights(path) as file:
            for name in set(file.names).difference(used_names(config, file.names)):
                total -= prod(file.shape(name)) * _BYTES.get(file.dtype(name), 0)
    return total


def mtp_prefixes(config: ModelConfig) -> tuple[str, ...]:
    """What names of tensors of the layers that predict further tokens begin with, in MiMo's and DeepSeek's layout."""
    layers = range(config.num_mtp_layers)
    return (
        *(f"model.mtp_layers.{layer}." for layer in layers),
        *(f"model.layers.{config.num_layers + layer}." for layer in layers),
    )


def used_names(config: ModelConfig, names: Sequence[str]) -> list[str]:
    """Those of a file's tensors that the model reads, or has no place for, in order.

    The others are layers that predict further tokens, parts that are not text, buffers that follow from the config,
    scales of what is not quantised here, and, where the head is the embedding, its copy.
    """
    prefixes, copy = mtp_prefixes(config), HEAD if config.tie_word_embeddings else ""
    prefix = text_prefix(config.family)
    others = OTHER_PREFIXES if has_other_parts(config.family) else ()

    def is_used(name: str) -> bool:
        own = name.removeprefix(prefix)
        if name.startswith(others) or own.startswith(prefixes) or own == copy or _DERIVED.fullmatch(own):
            return False
        return config.quantisation is None or not _CACHE_SCALES.fullmatch(own)

    return [name for name in names if is_used(name)]


def iterate_weights(
    folder: Path, config: ModelConfig, only: Container[str] | None = None, *, device: torch.device | str = "cpu"
) -> Iterator[tuple[str, torch.Tensor | QuantisedWeight]]:
    """Name and tensor of all `expected_shapes`, or of `only` these, one after the other: quantised, or in bfloat16.

    Linear layers and experts that are stored quantised, and a Llama-4's experts that are one tensor, are taken apart on
    `device`, where they are then. Wider types are rounded; norms' weights that the file has less one are float32.
    Tensors that are not `used_names` are left out. Raises CheckpointError, before any is read, unless names, shapes and
    types of all others fit exactly; and where a quantised weight's tensors contradict one another.
    """
    files = weight_files(folder)
    modules = _quantised_modules(config)
    places = _check_headers(folder, config, files, modules)
    of_part = {f"{module.name}.{part}": module for module in modules for part in module.stored}
    wanted = None
    if only is not None:
        wanted = {stored_name(config, name) for name, _ in expected_shapes(config) if name in only}
    done: set[str] = set()
    for path in files:
        with open_weights(path) as file:
            for name in used_names(config, file.names):
                module = of_part.get(name)
                whole = name if module is None else module.name + _WEIGHT
                if whole in done or not (wanted is None or whole in wanted):
                    continue
                done.add(whole)
                weight: torch.Tensor | QuantisedWeight | list[QuantisedWeight]
                if module is not None:
                    weight = _read_module(module, path, file, places, device)
                elif not config.packed_experts or not name.endswith((BLOCKS, SCALES)):
                    weight = file.read(name).to(torch.bfloat16)
                elif name.endswith(BLOCKS):
                    weight = _read_experts(name.removesuffix(BLOCKS), path, file, places, device)
                else:
                    continue
                for each, part in computed(config, whole, weight, device):
                    if only is None or each in only:
                        yield each, part


def iterate_tensors(
    folder: Path, config: ModelConfig, only: Container[str] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """As `iterate_weights`, quantised ones decoded."""
    for name, weight in iterate_weights(folder, config, only):
        yield name, decode(weight) if isinstance(weight, QuantisedWeight) else weight


def check_headers(folder: Path, config: ModelConfig) -> None:
    """Raises CheckpointError unless names, shapes and types of all tensors fit exactly; reads none."""
    _check_headers(folder, config, weight_files(folder), _quantised_modules(config))


def load_tensors(folder: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    """All of `iterate_tensors`, by name."""
    return dict(iterate_tensors(folder, config))


def load_weights(folder: Path, config: ModelConfig) -> dict[str, torch.Tensor | QuantisedWeight]:
    """All of `iterate_weights`, by name."""
    return dict(iterate_weights(folder, config))


def quantised_elements(config: ModelConfig) -> int:
    """Elements of all weights that are quantised. Raises CheckpointError for one of which its scheme cannot be."""
    modules = sum(module.outputs * module.inputs for module in _quantised_modules(config))
    packed = (prod(shape) for name, shape in stored_shapes(config) if name.endswith(BLOCKS) and config.packed_experts)
    return modules + 2 * sum(packed)


def _quantised_modules(config: ModelConfig) -> list[_Module]:
    if config.quantisation is None:
        return []
    modules = []
    shapes, embedding = dict(stored_shapes(config)), stored_name(config, EMBEDDING)
    for name, shape in shapes.items():
        module = name.removesuffix(_WEIGHT)
        if len(shape) != 2 or name == embedding or not name.endswith(_WEIGHT):
            continue
        scheme = config.quantisation.scheme_of(module)
        if scheme is not None:
            stored = dict(stored_tensors(scheme, *shape, module))
            if scheme.layout in ("awq", "gptq") and f"{module}.bias" not in shapes:
                stored["bias"] = StoredTensor(tuple(FLOATS), (shape[:1],), optional=True)
            modules.append(_Module(module, *shape, scheme, stored))
    return modules


def _read_module(
    module: _Module, path: Path, file: WeightFile, places: Mapping[str, Path], device: torch.device | str
) -> QuantisedWeight:
    """Of a module's tensors one at least lies in `file`, at `path`."""
    tensors: dict[str, torch.Tensor] = {}
    for part in module.stored:
        name = f"{module.name}.{part}"
        if (place := places.get(name)) is None:
            continue
        with ExitStack() as stack:
            source = file if place == path else stack.enter_context(open_weights(place))
            tensors[part] = source.read(name, quantised=True).to(device)
    bias = tensors.pop("bias", None)
    if bias is not None and bias.any():
        where = f"{places[f'{module.name}.bias']}: {module.name}.bias"
        raise CheckpointError(f"{where} is not zero, and the model has none there")
    try:
        return quantised_weight(module.scheme, tensors, module.outputs, module.inputs, module.name)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _read_experts(
    name: str, path: Path, file: WeightFile, places: Mapping[str, Path], device: torch.device | str
) -> list[QuantisedWeight]:
    """The experts of a layer, whose codes lie in `file`, at `path`."""
    place = places[name + SCALES]
    with ExitStack() as stack:
        source = file if place == path else stack.enter_context(open_weights(place))
        scales = source.read(name + SCALES).to(device)
    return mxfp4_weights(file.read(name + BLOCKS).to(device), scales, f"{place}: {name}")


def _check_headers(
    folder: Path, config: ModelConfig, files: Sequence[Path], modules: Sequence[_Module]
) -> dict[str, Path]:
    """The file of each tensor that is used."""
    quantised = {module.name + _WEIGHT for module in modules}
    expected = {
        name: StoredTensor(_dtypes(config, name), (shape,))
        for name, shape in stored_shapes(config)
        if name not in quantised
    }
    expected |= {f"{module.name}.{part}": tensor for module in modules for part, tensor in module.stored.items()}
    places: dict[str, Path] = {}
    for path in files:
        with open_weights(path) as file:
            for name in used_names(config, file.names):
                _check(file, name, expected.pop(name, None), path)
                places[name] = path
    if missing := sorted(name for name, tensor in expected.items() if not tensor.optional):
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
    return places


def _dtypes(config: ModelConfig, name: str) -> tuple[str, ...]:
    """Types that a tensor of no quantised module may have."""
    return ("U8",) if config.packed_experts and name.endswith((BLOCKS, SCALES)) else tuple(FLOATS)


def _check(file: WeightFile, name: str, expected: StoredTensor | None, path: Path) -> None:
    if expected is None:
        raise CheckpointError(f"{path}: unexpected tensor {name}")
    if file.shape(name) not in expected.shapes:
        words = " or ".join(str(list(shape)) for shape in expected.shapes)
        raise CheckpointError(f"{path}: {name} has shape {shown(list(file.shape(name)))}, expected {words}")
    if file.dtype(name) not in expected.dtypes:
        raise CheckpointError(
            f"{path}: {name} has dtype {file.dtype(name)}, expected one of {', '.join(expected.dtypes)}"
        )
