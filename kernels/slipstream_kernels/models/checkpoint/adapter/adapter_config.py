"""adapter_config.json of PEFT: which modules an adapter is for, their ranks and scales. What cannot be had is refused.

Fields and how patterns match: https://huggingface.co/docs/peft/package_reference/lora
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, read_json, shown
from slipstream_kernels.models.checkpoint.quantisation.module_patterns import check_regexes

CONFIG = "adapter_config.json"
MOST_RANK = 128
"""Of any adapter, whatever the server is started for."""

_ALL_LINEAR = "all-linear"
_HARMLESS = frozenset((
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules", "inference_mode",
    "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout",
    "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
    "runtime_config", "target_modules", "task_type", "use_rslora", "bias",
))  # fmt: skip
"""Fields that are read, or say nothing about what an adapter computes."""
_REFUSED = {
    "use_dora": "DoRA's magnitudes are not supported",
    "lora_bias": "biases of adapters are not supported",
    "modules_to_save": "modules that replace those of the model are not supported",
    "fan_in_fan_out": "transposed weights are not supported",
    "alora_invocation_tokens": "adapters that tokens of the prompt invoke are not supported",
    "target_parameters": "adapters of parameters, such as stacked experts, are not supported",
    "trainable_token_indices": "rows of the embedding are not supported",
    "layer_replication": "repeated layers are not supported",
}
_PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""How training may have begun: other ways leave part of the adapter in the model's own weights."""


@dataclass(frozen=True, slots=True)
class ModulePlan:
    """Rank of a module's adapter, and what its sums are multiplied by."""

    rank: int
    scale: float


def read_adapter_config(folder: Path, modules: Iterable[str], most_rank: int) -> dict[str, ModulePlan]:
    """Of `modules`, full names of a model's projections, those that an adapter is for, in order.

    Raises CheckpointError, which names the field, for what is malformed or not supported.
    """
    path = folder / CONFIG
    fields = read_json(path)
    _refuse(path, fields)
    targets = _targets(path, fields)
    excluded = _names(path, fields, "exclude_modules")
    layers = _layers(path, fields)
    ranks, alphas = _pattern(path, fields, "rank_pattern"), _pattern(path, fields, "alpha_pattern")
    plans = {}
    for module in modules:
        if not _is_target(targets, module) or (excluded is not None and _is_target(excluded, module)):
            continue
        if layers is not None and int(module.split(".")[2]) not in layers:
            continue
        rank = _rank(path, "rank_pattern", _matching(ranks, module, fields.get("r", 8)), most_rank)
        alpha = _alpha(path, _matching(alphas, module, fields.get("lora_alpha", 8)))
        plans[module] = ModulePlan(rank, alpha / (math.sqrt(rank) if _flag(path, fields, "use_rslora") else rank))
    if not plans:
        raise CheckpointError(
            f"{path}: target_modules {shown(fields.get('target_modules'))} name none of the projections of the model's "
            f"layers"
        )
    return plans


def _refuse(path: Path, fields: Mapping[str, Any]) -> None:
    if fields.get("peft_type") != "LORA":
        raise CheckpointError(f"{path}: peft_type is {shown(fields.get('peft_type'))}, supported is 'LORA'")
    if fields.get("task_type") not in (None, "CAUSAL_LM"):
        raise CheckpointError(f"{path}: task_type is {shown(fields['task_type'])}, supported is 'CAUSAL_LM'")
    for name, reason in _REFUSED.items():
        if fields.get(name):
            raise CheckpointError(f"{path}: {name} is {shown(fields[name])}: {reason}")
    if fields.get("bias", "none") != "none":
        raise CheckpointError(f"{path}: bias is {shown(fields['bias'])}, supported is 'none'")
    start = fields.get("init_lora_weights")
    if not any(type(start) is type(each) and start == each for each in _PLAIN_STARTS):
        raise CheckpointError(
            f"{path}: init_lora_weights is {shown(start)}, supported are true, false, 'gaussian', 'eva' and "
            f"'orthogonal': other adapters belong to base weights that were changed"
        )
    for name, value in fields.items():
        if value and name not in _HARMLESS:
            raise CheckpointError(f"{path}: {shown(name)} is {shown(value)}, which is not supported")


def _targets(path: Path, fields: Mapping[str, Any]) -> str | tuple[str, ...]:
    targets = _names(path, fields, "target_modules")
    if targets is None:
        raise CheckpointError(f"{path}: target_modules is missing, must be a list of names or an expression")
    for entry in () if isinstance(targets, str) else targets:
        if entry.rpartition(".")[2] in ("lm_head", "embed_tokens"):
            raise CheckpointError(
                f"{path}: target_modules has {shown(entry)}, supported are the projections of the model's layers"
            )
    return targets


def _names(path: Path, fields: Mapping[str, Any], name: str) -> str | tuple[str, ...] | None:
    """A list of names, or one regular expression; None where the field is missing, null or empty."""
    value = fields.get(name)
    if not value:
        return None
    if isinstance(value, str):
        if value != _ALL_LINEAR:
            check_regexes([value], name, str(path))
        return value
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise CheckpointError(f"{path}: {name} is {shown(value)}, must be a list of names or an expression")
    return tuple(value)


def _is_target(targets: str | tuple[str, ...], module: str) -> bool:
    if targets == _ALL_LINEAR:
        return True
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == each or module.endswith(f".{each}") for each in targets)


def _layers(path: Path, fields: Mapping[str, Any]) -> frozenset[int] | None:
    value = fields.get("layers_to_transform")
    if fields.get("layers_pattern") not in (None, [], "", "layers", ["layers"]):
        raise CheckpointError(f"{path}: layers_pattern is {shown(fields['layers_pattern'])}, supported is 'layers'")
    if value is None:
        return None
    numbers = value if isinstance(value, list) else [value]
    if not all(type(each) is int and each >= 0 for each in numbers):
        raise CheckpointError(f"{path}: layers_to_transform is {shown(value)}, must be a layer or a list of layers")
    return frozenset(numbers)


def _pattern(path: Path, fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if not value:
        return {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: {name} is {shown(value)}, must be an object")
    check_regexes([*value], name, str(path))
    return value


def _matching(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first pattern that is the end of a module's name, from a dot or its start on."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _rank(path: Path, pattern: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise CheckpointError(
            f"{path}: r, or a value of {pattern}, is {shown(value)}, must be from 1 to {most} (--max-lora-rank)"
        )
    return value


def _alpha(path: Path, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1e6:
        raise CheckpointError(
            f"{path}: lora_alpha, or a value of alpha_pattern, is {shown(value)}, must be above 0 and at most 1e6"
        )
    return float(value)


def _flag(path: Path, fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value not in (None, True, False):
        raise CheckpointError(f"{path}: {name} is {shown(value)}, must be true or false")
    return value is True
