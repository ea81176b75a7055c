"""Which modules a quantised checkpoint names: exact names, classes, parts of names, and regular expressions.

Patterns come from an untrusted file and are matched by a library that backtracks, so that those which could take long
are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from re import _constants as tokens  # type: ignore[attr-defined]  # re's own parser, which has no public name
from re import _parser as parser  # type: ignore[attr-defined]  # as above
from typing import Any

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, shown

REGEX = "re:"
"""What compressed-tensors puts in front of a regular expression."""

_MOST_NAMES = 1 << 14
_MOST_REGEXES = 64
_MOST_CHARACTERS = 512
_MOST_REPEATS = 4
"""Unbounded repeats of one expression: a name of n characters takes n to that power at most."""

_REPEATS = (tokens.MAX_REPEAT, tokens.MIN_REPEAT, tokens.POSSESSIVE_REPEAT)
_REFUSED = (tokens.GROUPREF, tokens.GROUPREF_EXISTS, tokens.ASSERT, tokens.ASSERT_NOT)


def names(value: Any, field: str) -> tuple[str, ...]:
    """A list of names and patterns, empty where it is null. Raises CheckpointError."""
    entries = [] if value is None else value
    if not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
        raise CheckpointError(f"config.json: {field} is {shown(value)}, must be a list of names")
    if len(entries) > _MOST_NAMES:
        raise CheckpointError(f"config.json: {field} has {len(entries)} entries, the limit is {_MOST_NAMES}")
    expressions = [entry.removeprefix(REGEX) for entry in entries if entry.startswith(REGEX)]
    check_regexes(expressions, field)
    return tuple(entries)


def check_regexes(expressions: Sequence[str], field: str, file: str = "config.json") -> None:
    """Raises CheckpointError for expressions that are none, or that may take long."""
    if len(expressions) > _MOST_REGEXES:
        raise CheckpointError(
            f"{file}: {field} has {len(expressions)} regular expressions, the limit is {_MOST_REGEXES}"
        )
    for expression in expressions:
        if len(expression) > _MOST_CHARACTERS:
            raise CheckpointError(
                f"{file}: {field} has {shown(expression)} of {len(expression)} characters, the limit is "
                f"{_MOST_CHARACTERS}"
            )
        try:
            parsed = parser.parse(expression)
            repeats = _unbounded(parsed, inside=False)
            re.compile(expression)
        except (re.error, RecursionError, OverflowError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{file}: {field} has {shown(expression)}: {error}") from error
        if repeats > _MOST_REPEATS:
            raise CheckpointError(
                f"{file}: {field} has {shown(expression)} with {repeats} repeats, the limit is {_MOST_REPEATS}"
            )


def _unbounded(parsed: Any, *, inside: bool) -> int:
    """Repeats in an expression. Raises ValueError for one within another, and for what looks back or ahead."""
    count = 0
    for kind, argument in parsed:
        if kind in _REFUSED:
            raise ValueError("references and assertions are not supported")
        nested = kind in _REPEATS and argument[1] > 1
        if nested and inside:
            raise ValueError("a repeat within a repeat is not supported")
        count += nested
        for part in _parts(argument):
            count += _unbounded(part, inside=inside or nested)
    return count


def _parts(argument: Any) -> Iterable[Any]:
    """Expressions within an item of a parsed one."""
    if isinstance(argument, parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from _parts(each)


def matches_name(entry: str, module: str) -> bool:
    """Whether an entry of compressed-tensors, an exact name or `re:` and an expression, is of a module."""
    if entry.startswith(REGEX):
        return re.match(entry.removeprefix(REGEX), module) is not None
    return entry == module


def is_part(entry: str, module: str) -> bool:
    """Whether an entry of the other methods is of a module: a run of the parts of its name, which dots divide."""
    return f".{entry.strip('.')}." in f".{module}."
