"""What config.json says of quantised weights, by the method that it names. Everything else is refused in its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, flag, section, shown
from slipstream_kernels.models.checkpoint.quantisation.compressed_tensors import read_compressed_tensors
from slipstream_kernels.models.checkpoint.quantisation.module_patterns import REGEX, check_regexes, names
from slipstream_kernels.models.checkpoint.quantisation.scheme import (
    BLOCK,
    GROUPS,
    HEAD_MODULE,
    LINEAR,
    Quantisation,
    Rule,
    WeightScheme,
)

_FIELDS = ("quantization_config", "compression_config")
"""The latter is what old files of compressed-tensors say."""


def read_quantisation(config: Mapping[str, Any]) -> Quantisation | None:
    """None for a model whose weights are not quantised. Raises CheckpointError for what is not supported."""
    for name in _FIELDS:
        if config.get(name):
            fields = section(config, name)
            method = fields.get("quant_method")
            if not isinstance(method, str) or method not in _METHODS:
                raise CheckpointError(
                    f"config.json: {name} is set (quant_method {shown(method)}), supported are {', '.join(_METHODS)}"
                )
            return _METHODS[method](fields, name)
    return None


def _fp8(fields: Mapping[str, Any], name: str) -> Quantisation:
    """As DeepSeek, Qwen and transformers write it."""
    activation = _one_of(fields, "activation_scheme", name, ("dynamic", "static", None))
    _one_of(fields, "fmt", name, ("e4m3", "float8_e4m3fn", None))
    block = fields.get("weight_block_size")
    if block not in (None, [BLOCK, BLOCK]):
        raise CheckpointError(
            f"config.json: {name}.weight_block_size is {shown(block)}, supported are null and [{BLOCK}, {BLOCK}]"
        )
    scheme = WeightScheme("float", 8, "tensor or channel")
    if block:
        scheme = WeightScheme("float", 8, "block", scale="weight_scale_inv")
    asked = (f"activation_scheme {shown(activation)}",) if activation else ()
    return Quantisation("fp8", (*_left_out(fields, name), Rule((LINEAR,), scheme)), asked)


def _awq(fields: Mapping[str, Any], name: str) -> Quantisation:
    """As AutoAWQ writes it (arXiv 2306.00978)."""
    _one_of({"version": str(fields.get("version", "gemm")).lower()}, "version", name, ("gemm",))
    _one_of(fields, "bits" if "bits" in fields else "w_bit", name, (4,))
    _one_of(fields, "zero_point", name, (True,))
    group = _group(fields, "group_size" if "group_size" in fields else "q_group_size", name)
    scheme = WeightScheme("awq", 4, "group" if group else "channel", group, symmetric=False, scale="scales")
    return Quantisation("awq", (*_left_out(fields, name), Rule((LINEAR,), scheme)))


def _gptq(fields: Mapping[str, Any], name: str) -> Quantisation:
    """As AutoGPTQ and GPTQModel write it (arXiv 2210.17323)."""
    form = fields.get("checkpoint_format") or "gptq"
    _one_of({"checkpoint_format": form}, "checkpoint_format", name, ("gptq", "gptq_v2"))
    scheme = _gptq_scheme(fields, name, offset=int(form == "gptq"))
    rules = [*_left_out(fields, name, head=not flag(fields, "lm_head")), *_gptq_overrides(fields, name)]
    blocks = fields.get("modules_in_block_to_quantize")
    if blocks is None:
        return Quantisation("gptq", (*rules, Rule((LINEAR,), scheme)))
    if not isinstance(blocks, list):
        raise CheckpointError(f"config.json: {name}.modules_in_block_to_quantize is {shown(blocks)}, must be a list")
    inside = names(
        [entry for part in blocks for entry in (part if isinstance(part, list) else [part])],
        f"{name}.modules_in_block_to_quantize",
    )
    return Quantisation("gptq", (*rules, Rule((*inside, HEAD_MODULE), scheme, parts=True)))


def _mxfp4(fields: Mapping[str, Any], name: str) -> Quantisation:
    """As gpt-oss has its experts. What is left out are all other modules, which cannot be otherwise."""
    names(fields.get("modules_to_not_convert"), f"{name}.modules_to_not_convert")
    return Quantisation("mxfp4", (), of_experts=True)


def _gptq_scheme(fields: Mapping[str, Any], name: str, offset: int) -> WeightScheme:
    if flag(fields, "desc_act"):
        raise CheckpointError(
            f"config.json: {name}.desc_act is true, supported are weights in the order of their columns"
        )
    bits = _one_of(fields, "bits", name, (4, 8))
    group = _group(fields, "group_size", name)
    return WeightScheme(
        "gptq", bits, "group" if group else "channel", group, symmetric=False, zero_offset=offset, scale="scales"
    )


def _gptq_overrides(fields: Mapping[str, Any], name: str) -> list[Rule]:
    """`dynamic`: expressions of names, with what is otherwise there; `-:` in front leaves modules out."""
    overrides = section(fields, "dynamic")
    where = f"{name}.dynamic"
    check_regexes([entry[2:] if entry[:2] in ("-:", "+:") else entry for entry in overrides], where)
    form = fields.get("checkpoint_format") or "gptq"
    rules = []
    for entry, changes in overrides.items():
        expression = entry[2:] if entry[:2] in ("-:", "+:") else entry
        scheme = None
        if not entry.startswith("-:"):
            merged = {**fields, **section(overrides, entry)} if isinstance(changes, dict) else fields
            scheme = _gptq_scheme(merged, where, offset=int(form == "gptq"))
        rules.append(Rule((REGEX + expression,), scheme))
    return rules


def _left_out(fields: Mapping[str, Any], name: str, *, head: bool = True) -> list[Rule]:
    """Modules that are not quantised, and the head, which these methods leave alone unless they say otherwise."""
    entries = [
        entry
        for key in ("modules_to_not_convert", "ignored_layers")
        for entry in names(fields.get(key), f"{name}.{key}")
    ]
    if head:
        entries.append(HEAD_MODULE)
    return [Rule(tuple(entries), None, parts=True)]


def _group(fields: Mapping[str, Any], key: str, name: str) -> int:
    """0: a whole row."""
    group: int = _one_of(fields, key, name, (-1, *GROUPS))
    return max(0, group)


def _one_of(fields: Mapping[str, Any], key: str, name: str, supported: tuple[Any, ...]) -> Any:
    value = fields.get(key)
    if not any(type(value) is type(each) and value == each for each in supported):
        words = ", ".join("null" if each is None else repr(each) for each in supported)
        raise CheckpointError(f"config.json: {name}.{key} is {shown(value)}, supported are {words}")
    return value


_METHODS: dict[str, Callable[[Mapping[str, Any], str], Quantisation]] = {
    "compressed-tensors": read_compressed_tensors,
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
