"""Fields of a config.json, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream_kernels.models.config import CheckpointError


def size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive integer; `default` where the field is missing or null. Raises CheckpointError."""
    value = default if config.get(name) is None else config[name]
    if type(value) is not int or value < 1:
        raise CheckpointError(f"config.json: {name} is {value!r}, must be a positive integer")
    return value


def number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number; `default` where the field is missing or null. Raises CheckpointError."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"config.json: {name} is {value!r}, must be a positive number")
    return float(value)


def flag(config: Mapping[str, Any], name: str) -> bool:
    """True or false, the latter where the field is missing or null. Raises CheckpointError."""
    value = config.get(name)
    if value not in (None, True, False):
        raise CheckpointError(f"config.json: {name} is {value!r}, must be true or false")
    return value is True
