"""Clocks of requests that have lost their service."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.request import ChoiceRequest, Sampling
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.resume_deadlines import ResumeDeadlines
from support.virtual_verify import run_virtually


def stream() -> ResumableStream:
    return ResumableStream(ChoiceRequest([1], Sampling(seed=0)), lambda output: None)


def test_a_clock_runs_from_its_first_start_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        due: list[tuple[ResumableStream, float]] = []
        deadlines = ResumeDeadlines(60.0, lambda each: due.append((each, loop.time() - began)))
        lost, resumed, lost_again = (stream() for _ in range(3))
        began = loop.time()
        for each in (lost, resumed, lost_again):
            deadlines.start(each)
        await asyncio.sleep(50.0)
        for each in (lost, lost_again):
            deadlines.start(each)
        for each in (resumed, lost_again):
            deadlines.stop(each)
        deadlines.start(lost_again)
        await asyncio.sleep(100.0)
        assert due == [(lost, pytest.approx(60.0)), (lost_again, pytest.approx(110.0))]
        assert not len(deadlines)

    with monkeypatch.context() as patches:
        run_virtually(patches.setattr, main())


def test_without_seconds_there_are_no_clocks() -> None:
    deadlines = ResumeDeadlines(0.0, lambda each: None)
    deadlines.start(stream())
    assert not len(deadlines)
