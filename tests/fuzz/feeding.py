"""Feeds a target: the inputs that are kept, then made ones, each a function of seed and index."""

from __future__ import annotations

import hashlib
import re
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz.target import Target
from fuzz.watch import Watch

SETTLE_EVERY = 1000
"""Inputs from one look at what is left behind to the next."""
WARM_UP = 300
"""Inputs before what the process holds is noted."""
_FRAME = re.compile(r'File "(.*)", line \d+, in (.*)')


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that broke something. `index` is -1 for one that is kept."""

    target: str
    seed: int
    index: int
    data: bytes
    trace: str

    @property
    def signature(self) -> str:
        """Equal for findings that are probably one."""
        frames = [frame for frame in _FRAME.findall(self.trace) if "site-packages" not in frame[0]]
        last = re.split(r"[^\w .:]|\d", self.trace.strip().rpartition("\n")[2])[0][:80]
        return hashlib.sha256(repr((frames[-3:], last)).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        where = f"{self.target}:{self.seed}:{self.index}" if self.index >= 0 else f"{self.target}, a kept input"
        return f"{where} ({len(self.data)} bytes)\n{self.trace}"


@dataclass(slots=True)
class Fed:
    """What came of it so far."""

    inputs: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    """Processor seconds of one input."""


def input_of(target: Target, seed: int, index: int) -> bytes:
    """The made input of that number."""
    return target.make(Random(f"{target.name}:{seed}:{index}"))


def kept_inputs(target: Target) -> Iterator[bytes]:
    """In order of name."""
    for path in sorted(target.seeds.glob("*.bin")):
        yield path.read_bytes()


def feed(
    target: Target,
    seed: int,
    begin: int,
    end: int,
    report: Callable[[Finding], None],
    *,
    kept: bool = True,
    at: Callable[[int], None] = lambda index: None,
) -> Fed:
    """Feed made inputs `begin` to `end` - 1, before them those that are kept; `at` is told of each before it begins."""
    fed, begun = Fed(), time.monotonic()
    with Watch() as watch:

        def one(data: bytes, index: int) -> None:
            watch.begin()
            try:
                target.check(data)
                if watch.slow() and index <= begin:  # the first inputs compile kernels: what stays slow is slow again
                    watch.begin()
                    target.check(data)
                watch.end()
            except Exception:  # noqa: BLE001 (whatever it is, it is what is looked for)
                watch.forget()
                report(Finding(target.name, seed, index, data, traceback.format_exc()))
            fed.inputs += 1

        def settle(index: int, *, warm: bool) -> None:
            try:
                target.settle()
                if warm:
                    watch.check_holdings()
                else:
                    watch.note_holdings()
            except Exception:  # noqa: BLE001 (as above)
                report(Finding(target.name, seed, index, b"", traceback.format_exc()))

        for data in kept_inputs(target) if kept else ():
            one(data, -1)
        for index in range(begin, end):
            at(index)
            one(input_of(target, seed, index), index)
            if index - begin == min(WARM_UP, (end - begin) // 2):
                settle(index, warm=False)
            elif (index - begin) % SETTLE_EVERY == SETTLE_EVERY - 1 or index == end - 1:
                settle(index, warm=True)
        fed.slowest = watch.slowest
    fed.seconds = time.monotonic() - begun
    return fed


def save(finding: Finding, folder: Path) -> Path:
    """Write a finding's input and trace; the path of the input."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.target}-{finding.signature}.bin"
    path.write_bytes(finding.data)
    path.with_suffix(".txt").write_text(str(finding), encoding="utf-8", errors="replace")
    return path
