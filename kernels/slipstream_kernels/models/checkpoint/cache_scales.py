"""How a checkpoint's keys and values are held, and the scales that it has for them."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.weight_file import FLOATS, open_weights, weight_files
from slipstream_kernels.models.kv_dtype import KVDtype
from slipstream_kernels.models.kv_form import FLOAT, KVForm

_log = logging.getLogger(__name__)

_NAMES = {
    "k_scale": ("k_scale", "k_proj.k_scale", "k_proj.output_scale"),
    "v_scale": ("v_scale", "v_proj.v_scale", "v_proj.output_scale"),
}
"""Of a layer's attention, in files of compressed-tensors and of others."""


def kv_form(folder: Path, config: ModelConfig, dtype: KVDtype) -> KVForm:
    """What `dtype` means for a model. auto: 8 bits where config.json says so and the files have what that needs.

    With 8 bits the files' scales are used, where there are any; else each row has its own.
    Raises CheckpointError where some scales are missing, or are none.
    """
    asked = None if config.quantisation is None else config.quantisation.cache
    if not (dtype.startswith("fp8") or (dtype == "auto" and asked is not None)):
        return FLOAT
    if asked == "dynamic":
        return KVForm(fp8=True)
    scales = _read_scales(folder, config)
    if scales is None and dtype == "auto":
        _log.warning("%s: config.json asks for keys and values of 8 bits, but there are no scales: not done", folder)
        return FLOAT
    try:
        return KVForm(fp8=True, scales=scales or ())
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error


def _read_scales(folder: Path, config: ModelConfig) -> tuple[tuple[float, float], ...] | None:
    """Of each layer, for keys and for values; None where the files have none at all."""
    found: dict[tuple[int, str], float] = {}
    places = {
        f"model.layers.{layer}.self_attn.{name}": (layer, scale)
        for layer in range(config.num_layers)
        for scale, names in _NAMES.items()
        for name in names
    }
    for path in weight_files(folder):
        with open_weights(path) as file:
            for name in (name for name in file.names if name in places):
                if file.dtype(name) not in FLOATS or file.shape(name) not in ((), (1,)):
                    shape = list(file.shape(name))
                    raise CheckpointError(f"{path}: {name} is {file.dtype(name)} {shape}, expected one number")
                found[places[name]] = _number(file.read(name))
    if not found:
        return None
    for layer, scale in places.values():
        if (layer, scale) not in found:
            raise CheckpointError(f"{folder}: {scale} of layer {layer} is missing, others are there")
    return tuple((found[layer, "k_scale"], found[layer, "v_scale"]) for layer in range(config.num_layers))


def _number(tensor: torch.Tensor) -> float:
    return float(tensor.float().item())
