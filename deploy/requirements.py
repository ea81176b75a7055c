"""Prints what pip needs before the source is there: `requirements.py [EXTRA ...]`, or `requirements.py build-system`.

Read from pyproject.toml beside it. Extras bring the project's dependencies with them; an extra may name others of the
project as `PROJECT[EXTRA,...]`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BUILD_SYSTEM = "build-system"


def requirements(pyproject: dict[str, Any], extras: Sequence[str]) -> list[str]:
    """Requirements of the project and its extras, each once, sorted. KeyError for an extra that it does not have."""
    project = pyproject["project"]
    own = re.compile(rf"{re.escape(project['name'])}\[([\w,-]+)\]")

    def flat(lines: Sequence[str]) -> Iterator[str]:
        for line in lines:
            named = own.fullmatch(line)
            for extra in named[1].split(",") if named else ():
                yield from flat(project["optional-dependencies"][extra])
            if not named:
                yield line

    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return sorted(set(flat(lines)))


def main(arguments: Sequence[str]) -> None:
    """Write one requirement a line."""
    pyproject = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8"))
    if list(arguments) == [BUILD_SYSTEM]:
        lines = pyproject["build-system"]["requires"]
    else:
        lines = requirements(pyproject, arguments)
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
