"""Rotary positions in config.json: `rope_scaling` beside `rope_theta`, or `rope_parameters` of transformers 5."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from slipstream_kernels.models.checkpoint.config_fields import (
    CheckpointError,
    flag,
    number,
    numbers,
    section,
    shown,
    size,
)
from slipstream_kernels.ops.rope import LinearScaling, Llama3Scaling, LongRopeScaling, Rope, RopeScaling, YarnScaling

_Fields = Mapping[str, Any]


def read_rope(
    config: _Fields, head_dim: int, *, layers: str = "", theta: float = 10000.0, partial: bool = False
) -> Rope:
    """What `rope_parameters` or `rope_scaling` say. Raises CheckpointError.

    layers: the type of the layers meant, where types differ: an entry of `rope_parameters`, else as given by `theta`,
    the base of frequencies where none is named. partial: whether a part of the head may turn.
    """
    place, fields = _fields(config, layers)
    nested = layers in section(config, "rope_parameters")
    base = number(fields, "rope_theta", theta) if nested else _base(config, theta)
    if base <= 1 and _kind(fields) == "yarn":
        raise CheckpointError("config.json: rope_theta is 1, must be above 1 where rope_type is 'yarn'")
    rotated = _rotated(config, fields, head_dim, partial=partial)
    return Rope(base, _scaling(config, place, fields, rotated or head_dim), rotated)


def _base(config: _Fields, theta: float) -> float:
    return number(config, "rope_theta", number(section(config, "rope_parameters"), "rope_theta", theta))


def _fields(config: _Fields, layers: str) -> tuple[str, _Fields]:
    """The object that tells of scaling, and what it is called."""
    old, new = section(config, "rope_scaling"), section(config, "rope_parameters")
    if layers and layers in new:
        return f"rope_parameters.{layers}", section(new, layers)
    if nested := [name for name, value in new.items() if isinstance(value, dict)]:
        raise CheckpointError(
            f"config.json: rope_parameters.{nested[0]} is an object, which is not supported for this model_type"
        )
    return ("rope_parameters", new) if _kind(old) == "default" else ("rope_scaling", old)


def _kind(fields: _Fields) -> Any:
    """The type of scaling; what transformers takes for `longrope` beside that name is named so."""
    kind = fields.get("rope_type") or fields.get("type") or "default"
    return "longrope" if kind == "su" or (kind == "yarn" and "long_factor" in fields) else kind


def _rotated(config: _Fields, fields: _Fields, head_dim: int, *, partial: bool) -> int:
    """Elements of a head that turn, 0 where all do."""
    part = number(fields, "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0))
    if part == 1:
        return 0
    if not partial:
        raise CheckpointError(f"config.json: partial_rotary_factor is {part:g}, supported is 1")
    rotated = int(head_dim * part)
    if rotated % 2 or not rotated:
        raise CheckpointError(
            f"config.json: partial_rotary_factor is {part:g}: {rotated} elements of a head would turn"
        )
    return rotated if rotated < head_dim else 0


def _scaling(config: _Fields, place: str, fields: _Fields, rotated: int) -> RopeScaling | None:
    kind = _kind(fields)
    readers: Mapping[str, Callable[[_Fields, _Fields, int], RopeScaling | None]] = {
        "default": lambda *_: None,
        "dynamic": _dynamic,
        "linear": lambda _, inner, __: LinearScaling(number(inner, "factor")),
        "llama3": _llama3,
        "longrope": _longrope,
        "yarn": _yarn,
    }
    if not isinstance(kind, str) or kind not in readers:
        raise CheckpointError(f"config.json: {place}.rope_type is {shown(kind)}, supported are {', '.join(readers)}")
    return readers[kind](config, fields, rotated)


def _dynamic(_config: _Fields, fields: _Fields, _rotated: int) -> None:
    """Frequencies change with the length of a text only beyond `max_position_embeddings`, where the context ends."""
    number(fields, "factor")


def _llama3(_config: _Fields, fields: _Fields, _rotated: int) -> Llama3Scaling:
    low, high = number(fields, "low_freq_factor"), number(fields, "high_freq_factor")
    if low > high:
        raise CheckpointError(f"config.json: low_freq_factor is {low}, must not be above high_freq_factor, {high}")
    original = size(fields, "original_max_position_embeddings")
    return Llama3Scaling(number(fields, "factor"), low, high, original)


def _original_context(config: _Fields, fields: _Fields) -> int:
    """Positions of the text that the unscaled frequencies were learned from."""
    name = "original_max_position_embeddings"
    if config.get(name) is not None:
        return size(config, name)
    return size(fields, name, size(config, "max_position_embeddings"))


def _factor(config: _Fields, fields: _Fields, original: int) -> float:
    return number(fields, "factor", size(config, "max_position_embeddings") / original)


def _yarn(config: _Fields, fields: _Fields, _rotated: int) -> YarnScaling:
    original = _original_context(config, fields)
    factor = _factor(config, fields, original)
    return YarnScaling(
        factor=factor,
        attention_factor=number(fields, "attention_factor", _yarn_attention(fields, factor)),
        beta_fast=number(fields, "beta_fast", 32.0),
        beta_slow=number(fields, "beta_slow", 1.0),
        original_context=original,
        truncate=fields.get("truncate") is None or flag(fields, "truncate"),
    )


def _yarn_attention(fields: _Fields, factor: float) -> float:
    """Section 3.4 of arXiv 2309.00071; with `mscale` and `mscale_all_dim` as DeepSeek has it."""

    def of(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if fields.get("mscale") and fields.get("mscale_all_dim"):
        return of(number(fields, "mscale")) / of(number(fields, "mscale_all_dim"))
    return of(1.0)


def _longrope(config: _Fields, fields: _Fields, rotated: int) -> LongRopeScaling:
    """The long factors where the context is longer than the original one, for every text: it is the folder's choice."""
    original = _original_context(config, fields)
    if original < 2:
        raise CheckpointError("config.json: original_max_position_embeddings is 1, must be 2 or more")
    factor = _factor(config, fields, original)
    long = size(config, "max_position_embeddings") > original
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(
        factors=numbers(fields, "long_factor" if long else "short_factor", rotated // 2),
        attention_factor=number(fields, "attention_factor", usual),
    )
