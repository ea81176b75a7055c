"""A directory that is a TOML file, which is read again when it changes."""

from __future__ import annotations

import asyncio
import logging
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from slipstream.directory.member import Member, checked_members

_log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.5
"""Between two looks at the file."""

_TYPES: Final = {"address": str, "model": str, "epoch": int, "draining": bool}


def read_file(path: Path) -> tuple[Member, ...]:
    """The members in a file of [[members]] tables; OSError, or ValueError that says what is wrong."""
    content = tomllib.loads(path.read_text("utf-8"))
    tables = content.pop("members", [])
    if content or not isinstance(tables, list):
        raise ValueError("only [[members]] tables are known")
    return checked_members(map(_member, tables))


def _member(table: Any) -> Member:
    if not isinstance(table, dict) or "address" not in table:
        raise ValueError("each of the [[members]] needs an address")
    for name, value in table.items():
        if name not in _TYPES:
            raise ValueError(f"unknown key {name!r}; there are {', '.join(_TYPES)}")
        if type(value) is not _TYPES[name]:
            raise ValueError(f"{name} must be a {_TYPES[name].__name__}")
    if not 0 <= table.get("epoch", 0) < 2**64:
        raise ValueError("epoch must be from 0 to 2^64 - 1")
    return Member(**table)


class FileDirectory:
    """See Directory. A file that is missing or malformed changes nothing, and is complained of once."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    async def watch(self) -> AsyncIterator[tuple[Member, ...]]:
        """See Directory."""
        former: tuple[Member, ...] | None = None
        complaint = ""
        while True:
            try:
                members = await asyncio.to_thread(read_file, self._path)
            except (OSError, ValueError) as error:
                if complaint != str(error):
                    complaint = str(error)
                    _log.warning("the directory %s cannot be read, its last list stays: %s", self._path, error)
            else:
                complaint = ""
                if members != former:
                    former = members
                    yield members
            await asyncio.sleep(POLL_SECONDS)
