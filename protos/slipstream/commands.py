"""Programs of commands whose help shows no types of Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperCommand

from slipstream.help_text import metavar

_SHOWN_TYPE: Final = re.compile(r" <([^<>]*)>$")


class Commands(typer.Typer):
    """A program of commands whose help shows no types of Python."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """See typer."""
        kwargs.setdefault("cls", _Command)
        return super().command(*args, **kwargs)


class _Command(TyperCommand):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options as typer does, but for the types behind their names."""
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            found = [param.get_help_record(ctx) for param in self.get_params(ctx) if param.param_type_name == kind]
            rows = [(_plain(record[0], argument=kind == "argument"), record[1]) for record in found if record]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _plain(shown: str, *, argument: bool) -> str:
    """`--port <int range>` as `--port PORT`, and `HOST:PORT <str>`, of an argument, as `HOST:PORT`."""
    match = _SHOWN_TYPE.search(shown)
    if match is None:
        return shown
    name = shown[: match.start()]
    return name if argument else f"{name} {metavar(name.split(',')[-1], match[1])}"
