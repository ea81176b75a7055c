"""The states that a proposer is handed are those of transformers, through real processes, whatever a request meets."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from benchmarks.lib.runner import Job, connect
from support.ask import ask, jobs, state, wait_until
from support.cluster import Cluster
from support.state_checker import CheckedSession, sessions_of

TESTS = Path(__file__).parents[1]
BOUNDARIES = (5, 0, 2, 8, 9)
"""In no order; of 8 layers, 9 is behind the final norm. (0 and 2 to 8 are hidden_states[b], 9 the last of them.)"""
TOLERANCE = 0.02
"""Relative error of a row: bfloat16 rounds by 2^-9, and the two passes add float32 numbers in different orders."""


class States:
    """What transformers computes."""

    def __init__(self, model: Path) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._last: torch.Tensor | None = None

    def of(self, tokens: list[int]) -> list[torch.Tensor]:
        """[positions, hidden] of each of BOUNDARIES."""
        kept: list[torch.Tensor] = []
        hook = self._model.model.norm.register_forward_pre_hook(lambda _module, inputs: kept.append(inputs[0][0]))
        with torch.no_grad():
            streams = self._model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        hook.remove()
        by_boundary = [*(stream[0] for stream in streams[:-1]), kept[0], streams[-1][0]]
        return [by_boundary[boundary] for boundary in BOUNDARIES]


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> States:
    return States(demo_model)


def check(session: CheckedSession, reference: States, *, first: int = 0) -> None:
    """Every position from `first` on but the last, whose state no step has computed, was handed over, and is right."""
    assert session.first == first
    assert len(session.states) == len(session.tokens) - 1 - first
    expected = reference.of(session.tokens)
    found = session.states.float().unflatten(1, (len(BOUNDARIES), -1)).unbind(1)
    for boundary, rows, stream in zip(BOUNDARIES, found, expected, strict=True):
        apart = torch.linalg.norm(rows - stream[first:-1], dim=1) / torch.linalg.norm(stream[first:-1], dim=1)
        assert float(apart.max()) < TOLERANCE, f"boundary {boundary}, position {first + int(apart.argmax())}"


@contextmanager
def cluster_of(
    model: Path, folder: Path, *verify_args: str, transport: str = "shm", start_draft_now: bool = True
) -> Iterator[Cluster]:
    folder.mkdir(exist_ok=True)
    (folder / "boundaries.json").write_text(json.dumps(BOUNDARIES))
    inproc = transport == "inproc"
    chosen = () if inproc else ("--transports", transport)
    with Cluster(
        model,
        draft=(f"{'inproc:' * inproc}checker=support.state_checker:StateChecker:{folder}",),
        verify_args=("--draft-deadline-ms", "1000", *chosen, *verify_args),
        start_draft_now=start_draft_now,
        env={"PYTHONPATH": str(TESTS)},
    ) as running:
        yield running


def texts_of(cluster: Cluster, work: list[Job], folder: Path) -> list[list[int]]:
    """Prompts and plain answers, which the proposer is then told of."""
    answers = ask(cluster, [replace(job, proposer="") for job in work])
    texts = [[*job.prompt_ids, *answer.token_ids] for job, answer in zip(work, answers, strict=True)]
    (folder / "texts.json").write_text(json.dumps(texts))
    return texts


def drafted(work: list[Job]) -> list[Job]:
    return [replace(job, proposer="checker", max_nodes=8, max_depth=4) for job in work]


def ended(folder: Path, count: int) -> list[CheckedSession]:
    wait_until(lambda: len(sessions_of(folder)) >= count, lambda: f"{len(sessions_of(folder))} sessions ended")
    return sessions_of(folder)


@pytest.mark.parametrize("transport", [pytest.param("grpc", marks=pytest.mark.slow), "shm", "inproc"])
def test_prompts_trees_and_prefix_hits(demo_model: Path, tmp_path: Path, reference: States, transport: str) -> None:
    folder = tmp_path / "states"
    with cluster_of(demo_model, folder, transport=transport) as cluster:
        work = jobs(3, tokens=40, length=290, vocabulary=(10, 8000))
        texts = texts_of(cluster, work, folder)
        answers = ask(cluster, drafted(work))
        assert [[*job.prompt_ids, *answer.token_ids] for job, answer in zip(work, answers, strict=True)] == texts
        sessions = ended(folder, 3)
        assert all(max(session.steps) > 1 for session in sessions)
        hits = state(cluster).prefix_hit_tokens
        turns = [replace(job, prompt_ids=(*text, 7, 8, 9)) for job, text in zip(work, texts, strict=True)]
        ask(cluster, drafted(turns))
        assert state(cluster).prefix_hit_tokens - hits >= 3 * 300
        sessions = ended(folder, 6)
    for session in sessions:
        check(session, reference)


@pytest.mark.slow
def test_preempted_requests(demo_model: Path, tmp_path: Path, reference: States) -> None:
    folder = tmp_path / "states"
    with cluster_of(demo_model, folder, "--num-pages", "40") as cluster:
        work = jobs(4, tokens=120, length=60, vocabulary=(10, 8000))
        texts_of(cluster, work, folder)
        before = state(cluster).preemptions
        ask(cluster, drafted(work))
        assert state(cluster).preemptions > before
        sessions = ended(folder, 4)
    for session in sessions:
        check(session, reference)


def patiently(condition: Callable[[], bool], what: str) -> None:
    """Wait for what takes the services seconds, and leave them the machine meanwhile."""
    limit = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.2)


def interrupted(cluster: Cluster, work: list[Job], meanwhile: Callable[[], object]) -> None:
    """Send requests, do something once each is decoding, let them go on a little, and cancel them."""

    def committed(more: int) -> Callable[[], bool]:
        enough = state(cluster).committed_tokens + more
        return lambda: state(cluster).committed_tokens >= enough

    def wait_for(more: int) -> None:
        patiently(committed(more), "the requests stand still")

    async def run() -> None:
        async with connect(cluster.gateway_grpc) as runner:
            asking = asyncio.create_task(runner.run(work, len(work)))
            await asyncio.to_thread(wait_for, 20 * len(work))
            await asyncio.to_thread(meanwhile)
            await asyncio.to_thread(wait_for, 60 * len(work))
            assert not asking.done()
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

    asyncio.run(run())
    patiently(lambda: state(cluster).running == 0, "the requests were not cancelled")


@pytest.mark.slow
def test_a_drafter_that_comes_late_and_one_that_comes_back(demo_model: Path, tmp_path: Path, reference: States) -> None:
    """The first finds states of nothing but what is computed from then on, the second of all that was since."""
    folder = tmp_path / "states"

    def work(length: int) -> list[Job]:
        return drafted(jobs(2, tokens=4000, length=length, vocabulary=(10, 8000)))

    with cluster_of(demo_model, folder, start_draft_now=False) as cluster:
        interrupted(cluster, work(40), cluster.start_draft)
        late = ended(folder, 2)

        def killed_and_back() -> None:
            cluster.kill("draft", signal.SIGKILL)
            cluster.start_draft()

        interrupted(cluster, work(48), killed_and_back)
        again = ended(folder, 4)[2:]
    for session in late:
        assert 40 < session.first < session.begun_with
        check(session, reference, first=session.first)
    for session in again:
        assert session.begun_with > 49
        check(session, reference)
