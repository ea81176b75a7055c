"""Requests whose answers are known, and when a made-up device's events come."""

from __future__ import annotations

import json
import time

from benchmarks.host_cost.answering_device import _Device, _Mark, _Times, held_jobs
from verify_service.core.request import RequestKey


def test_each_request_has_a_schema_of_its_own() -> None:
    jobs = held_jobs(6, seed=3, tokens=20)
    assert len({job.schema for job in jobs}) == len(jobs) == 6
    assert all(json.loads(job.schema)["type"] == "object" for job in jobs)
    request = jobs[0].request(RequestKey(0, 1))
    assert request.sampling.grammar is not None
    assert (request.sampling.grammar.json_schema, request.sampling.max_tokens) == (jobs[0].schema, 20)
    assert request.speculation.enabled is False


def test_events_come_once_the_device_has_done_what_was_queued_before_them() -> None:
    device = _Device()
    device.add(60.0)
    times, first, second = _Times(device), _Mark(device), _Mark(device)
    first.record()
    device.add(30.0)
    second.record()
    assert not first.query()
    assert times.seconds().busy == 60.0
    assert times.behind(first, second) == (0.0, 30.0)
    late = _Device()
    late.add(0.0)
    rested = _Times(late)
    resting = _Mark(late)
    time.sleep(0.001)
    resting.record()
    assert rested.behind(resting, resting).waited > 0.0
    assert resting.query()
