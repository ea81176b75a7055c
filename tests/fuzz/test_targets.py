"""Every fuzz target, for a short while: the inputs that are kept, and some made ones. `make fuzz` is the long run."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fuzz.feeding import Finding, feed, input_of
from fuzz.registry import CLASSES, started
from fuzz.target import BrokenError, Target

SEED = 20261122
INPUTS = {
    "byte_ring": 750, "checkpoints": 125, "draft_commands": 125, "draft_exchange": 200, "draft_link": 400,
    "gateway_messages": 125, "http_parser": 250, "openai_bodies": 250, "shared_memory": 125, "texts": 500,
    "tree_message": 1500, "verify_session": 400,
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_is_found(name: str, tmp_path: Path) -> None:
    findings: list[Finding] = []
    target = started(name, tmp_path)
    try:
        fed = feed(target, SEED, 0, INPUTS[name], findings.append)
    finally:
        target.close()
    assert not findings, "\n".join(map(str, findings[:3]))
    assert fed.inputs >= INPUTS[name]


class Planted(Target):
    """Breaks on one input of some twenty, and leaves descriptors behind on another."""

    name, share = "planted", 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "file"
        self._path.touch()
        self._files: list[object] = []

    def make(self, random: Random) -> bytes:
        return random.randbytes(4)

    def check(self, data: bytes) -> None:
        if data[0] % 20 == 3:
            raise BrokenError("planted")
        if data[0] % 20 == 4:
            self._files.append(self._path.open())

    def close(self) -> None:
        for file in self._files:
            file.close()


def test_what_is_planted_is_found_and_found_again(tmp_path: Path) -> None:
    findings: list[Finding] = []
    target = Planted(tmp_path)
    feed(target, 1, 0, 400, findings.append)
    broken = [finding for finding in findings if "planted" in finding.trace]
    assert 5 < len(broken) < 60
    assert len({finding.signature for finding in broken}) == 1
    assert all(input_of(target, 1, finding.index) == finding.data for finding in broken)
    with pytest.raises(BrokenError, match="planted"):
        target.check(broken[0].data)
    assert any("descriptors" in finding.trace for finding in findings)
    target.close()
