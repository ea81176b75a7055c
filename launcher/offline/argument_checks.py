"""Checks of keyword arguments: those that are known elsewhere, and say here what is done anyway or cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final

KINDS: Final[Mapping[type, tuple[type, ...]]] = {int: (Integral,), float: (Real,), str: (str,), bool: (bool,)}
"""What may be given for each type; the numbers of other libraries count as numbers, but no bool does."""


def check_unoffered(owner: str, given: Mapping[str, Any], known: Mapping[str, tuple[Any, ...]], hint: str = "") -> None:
    """Refuse what `owner` does not offer.

    `known` holds the values of each argument that ask for nothing, those alone are let pass. ValueError for other
    values of these, TypeError for other names, to which `hint` is added.
    """
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{owner} takes no argument {name!r}{hint}")
        if not any(value is each or (type(value) is type(each) and value == each) for each in known[name]):
            passing = " or ".join(map(repr, known[name]))
            raise ValueError(f"{owner}: {name}={value!r} is not offered, only {passing}")


def check_type(owner: str, name: str, value: Any, kind: type, *, optional: bool = False) -> None:
    """TypeError unless `value` is a `kind`, or None where it is optional."""
    if optional and value is None:
        return
    if not isinstance(value, KINDS[kind]) or (kind is not bool and isinstance(value, bool)):
        wanted = f"{kind.__name__} or None" if optional else kind.__name__
        raise TypeError(f"{owner}: {name} must be {wanted}, got {type(value).__name__}: {value!r}")
