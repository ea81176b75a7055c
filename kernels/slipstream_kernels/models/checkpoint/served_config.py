"""What a model is, and how it is asked to be served: activations of linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.scheme import WeightScheme
from slipstream_kernels.models.checkpoint.tensor_names import expected_shapes, stored_name

OPTION = "--linear-activations fp8"
_LAYERS, _WEIGHT = "model.layers.", "_proj.weight"


def served_config(folder: Path, *, fp8_activations: bool) -> ModelConfig:
    """The config of a folder, as `with_fp8_activations` where that is asked for. Raises CheckpointError."""
    config = ModelConfig.from_folder(folder)
    return with_fp8_activations(config) if fp8_activations else config


def with_fp8_activations(config: ModelConfig) -> ModelConfig:
    """The same model, whose layers of e4m3 below the head multiply activations that are quantised to e4m3.

    Raises CheckpointError where no layer is of e4m3, where one has scales of blocks or groups, and for mixtures of
    experts.
    """
    if config.form.experts is not None:
        raise CheckpointError(f"{OPTION}: mixtures of experts are not supported with activations in fp8")
    found = [(module, scheme) for module, scheme in _schemes(config) if scheme.number == "e4m3"]
    if not found or config.quantisation is None:
        raise CheckpointError(f"{OPTION}: no linear layer of the model has weights in fp8 (e4m3)")
    for module, scheme in found:
        if scheme.strategy in ("block", "group"):
            raise CheckpointError(
                f"{OPTION}: {module} has scales of {scheme.strategy}s, which are not supported with activations in "
                "fp8: scales of rows and of tensors are"
            )
    return replace(config, quantisation=replace(config.quantisation, fp8_activations=True))


def _schemes(config: ModelConfig) -> Iterator[tuple[str, WeightScheme]]:
    """Modules of the layers that are quantised, as the folder calls them, and how."""
    if config.quantisation is None:
        return
    for name, _ in expected_shapes(config):
        if name.startswith(_LAYERS) and name.endswith(_WEIGHT):
            module = stored_name(config, name).removesuffix(".weight")
            scheme = config.quantisation.scheme_of(module)
            if scheme is not None:
                yield module, scheme
