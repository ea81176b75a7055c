"""The `quantization_config` of compressed-tensors: groups of modules, each with a scheme of weights and activations.

Source: compressed-tensors 0.20, quantization/quant_config.py and quant_args.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, section, shown
from slipstream_kernels.models.checkpoint.quantisation.module_patterns import names
from slipstream_kernels.models.checkpoint.quantisation.scheme import (
    BLOCK,
    GROUPS,
    LINEAR,
    Layout,
    Quantisation,
    Rule,
    Strategy,
    WeightScheme,
)

_FORMATS: dict[str, tuple[tuple[str, int, Layout], ...]] = {
    "float-quantized": (("float", 8, "float"),),
    "int-quantized": (("int", 8, "int"),),
    "naive-quantized": (("float", 8, "float"), ("int", 8, "int")),
    "pack-quantized": (("int", 4, "pack"), ("int", 8, "pack")),
}
"""Of each format that is supported: type and bits of its weights, and their layout."""
_MOST_GROUPS = 64


def read_compressed_tensors(fields: Mapping[str, Any], name: str) -> Quantisation:
    """Raises CheckpointError for what is not supported, in the words of config.json."""
    _refuse_others(fields, name)
    groups = section(fields, "config_groups")
    if not 1 <= len(groups) <= _MOST_GROUPS:
        raise CheckpointError(
            f"config.json: {name}.config_groups has {len(groups)} groups, must be 1 to {_MOST_GROUPS}"
        )
    by_name, by_class, asked = [], [], []
    for key in groups:
        where = f"{name}.config_groups.{key}"
        group = section(groups, key)
        entries = names(group.get("targets"), f"{where}.targets")
        scheme = _scheme(group, group.get("format") or fields.get("format"), where)
        by_name.append(Rule(tuple(entry for entry in entries if entry != LINEAR), scheme))
        if LINEAR in entries:
            by_class.append(Rule((LINEAR,), scheme))
        if group.get("input_activations"):
            asked.append(f"it ({where}.input_activations)")
        if group.get("output_activations"):
            raise CheckpointError(f"config.json: {where}.output_activations is set, which is not supported")
    cache = _cache(section(fields, "kv_cache_scheme"))
    asked_cache = f"{name}.kv_cache_scheme" if cache is None and fields.get("kv_cache_scheme") else ""
    ignored = Rule(names(fields.get("ignore"), f"{name}.ignore"), None)
    rules = ignored, *by_name, *by_class
    return Quantisation("compressed-tensors", rules, tuple(asked), asked_cache, cache=cache)


def _cache(scheme: Mapping[str, Any]) -> Literal["static", "dynamic"] | None:
    """How keys and values are to be held; None: as ever, also where that is not what is asked for."""
    found = [scheme.get(key) for key in ("type", "num_bits")]
    if found != ["float", 8] or scheme.get("strategy") not in (None, "tensor") or scheme.get("symmetric") is False:
        return None
    return "dynamic" if scheme.get("dynamic") is True else "static"


def _refuse_others(fields: Mapping[str, Any], name: str) -> None:
    sparsity = section(fields, "sparsity_config")
    if sparsity and sparsity.get("format") not in (None, "dense"):
        raise CheckpointError(
            f"config.json: {name}.sparsity_config.format is {shown(sparsity.get('format'))}, supported is 'dense'"
        )
    if fields.get("transform_config"):
        raise CheckpointError(f"config.json: {name}.transform_config is set, which is not supported")
    status = fields.get("quantization_status")
    if status not in (None, "compressed"):
        raise CheckpointError(f"config.json: {name}.quantization_status is {shown(status)}, supported is 'compressed'")


def _scheme(group: Mapping[str, Any], form: Any, where: str) -> WeightScheme:
    weights = section(group, "weights")
    kind, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    if not isinstance(form, str) or form not in _FORMATS:
        words = ", ".join(_FORMATS)
        raise CheckpointError(f"config.json: the format of {where} is {shown(form)}, supported are {words}")
    layout = next((found for *key, found in _FORMATS[form] if key == [kind, bits]), None)
    if layout is None or type(bits) is not int:
        raise CheckpointError(
            f"config.json: {where}.weights is {shown(kind)} of {shown(bits)} bits, which {form} does not hold here"
        )
    if weights.get("actorder") not in (None, False, "weight", "static"):
        raise CheckpointError(
            f"config.json: {where}.weights.actorder is {shown(weights['actorder'])}, supported are weights in the "
            "order of their columns"
        )
    if weights.get("dynamic") not in (None, False):
        raise CheckpointError(f"config.json: {where}.weights.dynamic is {shown(weights['dynamic'])}, must be false")
    symmetric = weights.get("symmetric", True)
    if symmetric is not True and (kind == "float" or symmetric is not False):
        raise CheckpointError(f"config.json: {where}.weights.symmetric is {shown(symmetric)}, which is not supported")
    strategy, size = _strategy(weights, where)
    return WeightScheme(layout, bits, strategy, size, symmetric=symmetric)


def _strategy(weights: Mapping[str, Any], where: str) -> tuple[Strategy, int]:
    """What shares a scale, and the size of a group."""
    size, strategy = weights.get("group_size"), weights.get("strategy")
    if strategy is None:  # as the library infers it
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    if strategy == "group":
        if type(size) is not int or size not in GROUPS:
            words = ", ".join(map(str, GROUPS))
            raise CheckpointError(f"config.json: {where}.weights.group_size is {shown(size)}, supported are {words}")
        return "group", size
    if strategy == "block":
        block = weights.get("block_structure")
        if block != [BLOCK, BLOCK]:
            raise CheckpointError(
                f"config.json: {where}.weights.block_structure is {shown(block)}, supported is [{BLOCK}, {BLOCK}]"
            )
        return "block", 0
    if strategy == "channel":
        return "channel", 0
    if strategy == "tensor":
        return "tensor", 0
    raise CheckpointError(
        f"config.json: {where}.weights.strategy is {shown(strategy)}, supported are tensor, channel, group, block"
    )
