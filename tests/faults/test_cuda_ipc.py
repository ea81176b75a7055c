"""States through a GPU's memory between real processes: every bit of them, and drafters killed as they read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from support.device_pair import DevicePair, kill
from support.state_checker import CheckedSession, sessions_of

pytestmark = pytest.mark.gpu

BOUNDARIES = (5, 0, 9)
REQUESTS, TOKENS = 8, 600
KILLS = 10
AT_ONCE = 5
"""Draft services that are attached while they are killed one after the other: to start one takes seconds."""
SLACK = 64 << 20
"""Bytes of the GPU's memory that may differ between two looks: other tools of the machine look at it too."""


def prompts() -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(10, 8000, random.integers(8, 300)).tolist() for _ in range(REQUESTS)]


class Bench:
    """A verify service, and what is known of its answers: `texts` with their prompts, and the states of each."""

    transport = "cuda_ipc"
    tokens = TOKENS

    def __init__(self, pair: DevicePair, folder: Path) -> None:
        self.pair = pair
        self.folder = folder
        self.texts: list[list[int]] = []
        self.plain: list[CheckedSession] = []

    def prepare(self) -> None:
        """Answer without trees, by a draft service that is sent its states as bytes."""
        self.plain = self.drafted("plain", "checker=support.state_checker:StateChecker", "shm", trees=False)

    def drafted(self, name: str, proposer: str, transport: str, *, trees: bool = True) -> list[CheckedSession]:
        """What a draft service of its own was given of all requests."""
        process = self.pair.draft(f"{proposer}:{self.data(name, trees=trees)}", "--transports", transport)
        self.pair.wait(lambda: self.pair.attached().get(process.pid, ("",))[0] == transport)
        answers = self.pair.stream(prompts(), self.tokens, "checker", temperature=0.8, seed=3).answers()
        texts = list(map(list.__add__, prompts(), answers))
        self.texts = self.texts or texts
        assert texts == self.texts
        self.pair.wait(lambda: len(sessions_of(self.folder / name)) >= REQUESTS)
        kill([process])
        return sorted(sessions_of(self.folder / name), key=lambda session: session.tokens)

    def data(self, name: str, *, trees: bool = True) -> Path:
        """A folder for a StateChecker, which makes trees if it is told the texts."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "boundaries.json").write_text(json.dumps(BOUNDARIES))
        if trees:
            (folder / "texts.json").write_text(json.dumps(self.texts))
        return folder


@pytest.fixture(scope="module")
def bench(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("cuda-ipc")
    with DevicePair(demo_model, folder, "cuda", *FLAGS) as pair:
        bench = Bench(pair, folder)
        bench.prepare()
        yield bench


FLAGS = (
    *("--max-running", str(REQUESTS), "--step-nodes", "88", "--prefill-chunk", "256", "--max-context", "1024"),
    *("--max-nodes", "12", "--num-pages", "1024", "--no-prefix-cache", "--no-adaptive", "--draft-deadline-ms", "1000"),
    *("--feature-boundaries", "0,5,9"),
)


def test_every_row_is_what_verify_has_captured(bench: Bench) -> None:
    """Of requests whose steps accept nothing, some nodes or all of them; compared with rows of steps without trees."""
    before = bench.pair.state().steps
    sessions = bench.drafted("bits", "checker=support.state_checker:StateChecker", bench.transport)
    steps = sum(len(session.steps) for session in sessions)
    assert steps < sum(len(session.steps) for session in bench.plain), "no trees were accepted"
    assert {count for session in sessions for count in session.steps} >= {1, 2, 3}
    rows = 0
    for session, expected in zip(sessions, bench.plain, strict=True):
        count = len(session.states)
        assert session.first == expected.first == 0
        assert session.tokens == expected.tokens[: len(session.tokens)]
        assert len(session.tokens) - 1 == count > bench.tokens - 10
        assert torch.equal(session.states.view(torch.int16), expected.states[:count].view(torch.int16))
        rows += count
    print(f"{rows} rows equal, in {steps} commits of {bench.pair.state().steps - before} steps")


def test_drafters_are_killed_as_they_read(bench: Bench) -> None:
    """Nothing but speed changes, and the memory of the GPU and of the process stays what it was."""
    free: list[int] = []
    resident: list[int] = []
    for round_number in range(KILLS // AT_ONCE):
        proposer = f"checker=support.busy_reader:create:{bench.data(f'killed-{round_number}')}"
        drafters = [bench.pair.draft(proposer, "--transports", bench.transport) for _ in range(AT_ONCE)]
        pair = bench.pair
        pair.wait(lambda: {each.pid for each in drafters} <= set(pair.attached()))  # noqa: B023 - within this round
        assert {each[0] for each in pair.attached().values()} == {bench.transport}, pair.attached()
        stream = pair.stream(prompts(), bench.tokens, "checker", temperature=0.8, seed=3)
        total, killed, longest, last = REQUESTS * bench.tokens, 0, 0.0, time.monotonic()
        for count in stream:
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            if killed < AT_ONCE and count > (killed + 1) * total // (AT_ONCE + 2):
                working = max(pair.state().drafters, key=lambda each: each.requests, default=None)
                living = [each for each in drafters if each.poll() is None]
                chosen = [each for each in living if working is not None and each.pid == working.process_id]
                kill(chosen or living[:1])
                killed += 1
        assert killed == AT_ONCE
        answers = [stream.tokens[number] for number in range(REQUESTS)]
        assert list(map(list.__add__, prompts(), answers)) == bench.texts
        pair.wait(lambda: not pair.attached())  # noqa: B023 - within this round
        free.append(_free_bytes())
        assert pair.verify is not None
        resident.append(_resident_bytes(pair.verify.pid))
        print(f"round {round_number}: {killed} killed, longest pause {longest:.3f} s, free {free}, resident {resident}")
    assert free[-1] > free[0] - SLACK
    assert resident[-1] < resident[0] + SLACK


def _free_bytes() -> int:
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0


def _resident_bytes(process: int) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError
