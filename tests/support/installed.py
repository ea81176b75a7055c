"""An environment that looks as after `pip install` of the wheel, made without an index and without building."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
KERNELS = "kernels/slipstream_kernels"
SCRIPT = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


@dataclass(frozen=True)
class Installed:
    """A virtual environment with our packages where the wheel puts them."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def slipstream(self) -> Path:
        return self.folder / "bin" / "slipstream"

    @property
    def packages(self) -> Path:
        (found,) = (self.folder / "lib").glob("python3*/site-packages")
        return found

    def run(self, *command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        """What becomes of a command there, in the environment of a user's shell."""
        return subprocess.run(
            list(map(str, command)), cwd=cwd, env=shell(), capture_output=True, text=True, check=False, timeout=200
        )


def shell() -> dict[str, str]:
    """The environment of a shell that knows nothing of the checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}


def install(folder: Path, *, extras: bool) -> Installed:
    """Install the wheel's packages and what they depend on; of what comes with extras all or nothing.

    With extras the kernels stay in the checkout: compiled ones are kept by the place of their sources.
    """
    venv.create(folder, symlinks=True)
    installed = Installed(folder)
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for package in [package for package in packages if not (extras and package == KERNELS)]:
        target = installed.packages / Path(package).name
        shutil.copytree(ROOT / package, target, ignore=shutil.ignore_patterns("__pycache__", "results"))
    _write_metadata(installed.packages)
    if extras:
        libraries = distribution("grpcio").locate_file("")
        (installed.packages / "all.pth").write_text(f"{(ROOT / KERNELS).parent}\n{libraries}\n")
    else:
        for place in _files_of(PROJECT["project"]["dependencies"]):
            (installed.packages / place.name).symlink_to(place)
    for name, entry in PROJECT["project"]["scripts"].items():
        module, _, function = entry.partition(":")
        script = folder / "bin" / name
        script.write_text(SCRIPT.format(python=installed.python, module=module, function=function))
        script.chmod(0o755)
    return installed


def _write_metadata(packages: Path) -> None:
    """What entry points are found by."""
    info = packages / "slipstream_server-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slipstream-server\nVersion: 0\n")
    groups = PROJECT["project"]["entry-points"].items()
    text = "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups)
    (info / "entry_points.txt").write_text(text)


def _files_of(requirements: Iterable[str]) -> set[Path]:
    """Top-level files and folders of the distributions and of all that they depend on."""
    seen: set[str] = set()
    places: set[Path] = set()
    pending = [Requirement(each) for each in requirements]
    while pending:
        wanted = pending.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in seen or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        found = distribution(name)
        pending += [Requirement(each) for each in found.requires or ()]
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        places |= {Path(str(found.locate_file(top))) for top in tops}
    return places
