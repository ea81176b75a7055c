"""Help of commands in words of their users: what stands for a value says what it is, and not how a program holds it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Final, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

_BY_NAME: Final = {
    "config": "FILE", "device": "DEVICE", "file": "FILE", "host": "HOST", "hosts": "HOST", "inproc": "PROPOSER",
    "key": "KEY", "level": "LEVEL", "map": "FILE", "mib": "MIB", "model": "DIR", "ms": "MS", "name": "NAME",
    "port": "PORT", "proposer": "PROPOSER", "proposers": "PROPOSER", "seconds": "SECONDS",
    "speculative_config": "JSON|FILE", "timeout": "SECONDS", "token": "SECRET", "transports": "NAME",
    "verify": "HOST:PORT",
}  # fmt: skip
"""By the name of an option, or by its last word."""

_BY_TYPE: Final = {
    "int": "INT", "int range": "INT", "float": "FLOAT", "float range": "FLOAT", "str": "TEXT", "path": "PATH",
    "Path": "PATH", "file": "FILE", "directory": "DIR", "list[str]": "TEXT", "list[Path]": "PATH", "list[int]": "INT",
    "list[float]": "FLOAT",
}  # fmt: skip
"""By the type, as typer shows it."""


def metavar(option: str, kind: str) -> str:
    """What stands for the value of an option such as `--hang-seconds`, of a type such as `float range`."""
    name = option.lstrip("-").replace("-", "_")
    return _BY_NAME.get(name) or _BY_NAME.get(name.rpartition("_")[2]) or _BY_TYPE.get(kind, kind)


def name_values(parser: argparse.ArgumentParser, fields: Iterable[tuple[str, FieldInfo]]) -> None:
    """Name the values of a parser's flags, one for each field, and say their defaults as one would type them."""
    by_flag = {"--" + name.replace("_", "-"): (name, field) for name, field in fields}
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way to see what it was given
        known = next((by_flag[flag] for flag in action.option_strings if flag in by_flag), None)
        if known is not None:
            name, field = known
            if action.metavar is not None and not str(action.metavar).startswith("{"):
                action.metavar = _field_metavar(name, field)
            action.help = _field_help(field)


def _field_metavar(name: str, field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "metavar" in extra:
        return str(extra["metavar"])
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
    known = next((kind.__name__ for kind in kinds if kind.__name__ in _BY_TYPE), "str")
    several = tuple in (field.annotation, get_origin(field.annotation))
    return metavar(name, known) + (",..." if several else "")


def _field_help(field: FieldInfo) -> str:
    default = field.default
    if field.is_required():
        note = "required"
    elif isinstance(default, SecretStr) or default is None or default in ("", ()):
        note = ""
    elif isinstance(default, tuple):
        note = f"default: {','.join(map(str, default))}"
    else:
        note = f"default: {str(default).lower() if isinstance(default, bool) else default}"
    text = " ".join((field.description or "").split()).rstrip(".")
    return (f"{text} ({note})" if note else text).replace("%", "%%")
