"""Puts what a run has made in the place of the demo models: `python -m training.demo_models.tool_use.install ...`.

All three or none: they are unpacked, given their cards and weighed beside the old ones, and then change places.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from training.demo_models.pretrain import DRAFT_NAME, TARGET_NAME
from training.demo_models.tool_use.cards import card_of

HEAD_NAME: Final = "slipstream-demo-eagle3"
NAMES: Final = (TARGET_NAME, DRAFT_NAME, HEAD_NAME)
CURVE: Final = "loss.png"
MOST_BYTES: Final = 48_000_000
"""Of all that is in the folder of the models."""


def install(out: Path, models: Path) -> None:
    """Replace the models in a folder by those that a run has put into OUT. RuntimeError where a run is not over.

    RuntimeError, too, where the folder would have more than MOST_BYTES. Then, or where anything fails, the folder is
    as it was.
    """
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    if "done" not in results:
        raise RuntimeError(f"{out}: the run has not come to its end")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=models) as folder:
        for name in NAMES:
            _unpack(out, name, Path(folder))
            old = (models / name / "README.md").read_text(encoding="utf-8")
            (Path(folder) / name / "README.md").write_text(card_of(name, old, results), encoding="utf-8")
            if (models / name / CURVE).is_file():  # of the training that the card goes on to tell of
                shutil.copy2(models / name / CURVE, Path(folder) / name)
        replaced = sum(_size(models / name) for name in NAMES)
        size = _size(models) - replaced
        if size > MOST_BYTES:
            raise RuntimeError(f"{models} would have {size} bytes, the limit is {MOST_BYTES}")
        _swap(Path(folder), models)


def _unpack(out: Path, name: str, folder: Path) -> None:
    """Files of a model's own folder alone, whatever else an archive may have."""
    (folder / name).mkdir()
    pieces = sorted(out.glob(f"{name}-[0-9]*.tar"))
    for piece in pieces:
        with tarfile.open(piece) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None and Path(member.name).parent == Path(name):
                    with content, (folder / member.name).open("wb") as file:
                        shutil.copyfileobj(content, file)
    if not (folder / name / "config.json").is_file():
        raise RuntimeError(f"{out}: {name} is not there")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _swap(new: Path, models: Path) -> None:
    """Exchange the folders of all models; none where one cannot be."""
    old = new / "old"
    old.mkdir()
    moved: list[str] = []
    try:
        for name in NAMES:
            (models / name).replace(old / name)
            moved.append(name)
            (new / name).replace(models / name)
    except OSError:
        for name in moved:
            if (models / name).exists():
                shutil.rmtree(models / name)
            (old / name).replace(models / name)
        raise


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m training.demo_models.tool_use.install", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory that a run has put its models into")
    parser.add_argument("--models", type=Path, required=True, help="directory whose demo models are replaced")
    options = parser.parse_args(arguments)
    install(options.out, options.models)


if __name__ == "__main__":
    main()
