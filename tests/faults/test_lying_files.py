"""A few mutations of every kind of checkpoint file: no traceback, no memory taken (`support.lying_files`)."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from support import lying_files
from support.lying_files import KINDS, MEMORY, Child, Tally, outcome, run, write_folders

COUNT = 4


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lying") / "folders"
    write_folders(root)
    return root


def test_mutations_are_refused_by_one_line_or_answer(folders: Path) -> None:
    tallies: dict[str, Tally] = {}
    run(list(KINDS), COUNT, 0, folders, tallies.__setitem__)
    assert {name: tally.failures for name, tally in tallies.items() if tally.failures} == {}
    assert tallies.keys() == KINDS.keys()
    assert sum(tally.refused for tally in tallies.values()) > 2 * len(KINDS)
    assert sum(tally.loaded for tally in tallies.values()) > len(KINDS)


def test_seeds_give_the_same_files_whatever_came_before(folders: Path) -> None:
    def files(numbers: Iterable[int]) -> dict[tuple[str, int], bytes]:
        return {
            (name, number): kind.mutate((folders / kind.folder / kind.file).read_bytes(), Random(number))
            for number in numbers
            for name, kind in KINDS.items()
        }

    assert files(range(50)) == files(reversed(range(50)))


@pytest.mark.parametrize(
    ("error", "judgement"),
    [
        (CheckpointError("config.json: x is 1, the limit is 0"), "refused: config.json: x is 1, the limit is 0"),
        (FailedPreconditionError("two\nlines"), "failed: not one line"),
        (FailedPreconditionError(""), "failed: not one line"),
        (caused(FailedPreconditionError("cannot be read"), MemoryError()), "failed: out of memory"),
        (
            caused(CheckpointError("w"), RuntimeError("DefaultCPUAllocator: can't allocate memory")),
            "failed: out of memory",
        ),
        (ZeroDivisionError("division by zero"), "failed: ZeroDivisionError: division by zero at test_lying_files.py:"),
        (KeyboardInterrupt(), "failed: KeyboardInterrupt"),
    ],
)
def test_the_judge(error: BaseException, judgement: str, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: object) -> None:
        raise error

    monkeypatch.setattr(lying_files, "check", check)
    assert outcome("token map", 0, folders).startswith(judgement)


def test_a_process_that_dies_or_takes_more_is_a_failure(folders: Path) -> None:
    """Its memory is limited, and it is started again after it has died."""
    child = Child(folders)
    try:
        assert child.outcome("token map", 0)
        assert child.process is not None
        soft, _ = resource.prlimit(child.process.pid, resource.RLIMIT_AS)
        size = int(Path(f"/proc/{child.process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
        assert soft < size + 2 * MEMORY
        child.process.kill()
        assert child.outcome("token map", 0).startswith("failed: ")
        assert not child.outcome("token map", 0).startswith("failed: ")
    finally:
        child.close()
