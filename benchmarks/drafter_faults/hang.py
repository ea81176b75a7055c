"""Requests sent to the verify service itself, with and without speculation in turns, while its drafters hang.

No gateway is on their way, which at the pace of a small model on a GPU would be what is measured.
"""

from __future__ import annotations

import queue
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.drafter_faults.services import Services
from benchmarks.lib.runner import REQUEST_SECONDS, STATE_SECONDS, Job, sampling_of, speculation_of
from slipstream.rpc.channel import open_sync_channel
from slipstream.v1 import sampling_pb2, verify_pb2, verify_pb2_grpc

NOT_OVER = sampling_pb2.FINISH_REASON_UNSPECIFIED


@dataclass(frozen=True, slots=True)
class Section:
    """What came of the jobs, all at the same time: each one's tokens in the order of the jobs, and what it took.

    `seconds` run from the first request to the last token, `cpu_seconds` are the verify service's of a processor.
    """

    answers: Sequence[tuple[int, ...]]
    failures: int
    seconds: float
    cpu_seconds: float

    @property
    def pace(self) -> float:
        """Tokens a second."""
        return sum(map(len, self.answers)) / self.seconds

    def differing(self, plain: Sequence[Sequence[int]]) -> int:
        """How many answers are not those of plain decoding."""
        return sum(answer != tuple(tokens) for answer, tokens in zip(self.answers, plain, strict=True))


def section(services: Services, jobs: Sequence[Job]) -> Section:
    """Answer each job once."""
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for number, job in enumerate(jobs):
        requests.put(_submit(number, job))
    messages: list[Any] = []
    left = len(jobs)
    with open_sync_channel(services.cluster.verify_address) as channel:
        stub = verify_pb2_grpc.VerifyServiceStub(channel)
        stub.GetState(verify_pb2.GetStateRequest(), timeout=STATE_SECONDS)  # connects
        spent, begun = services.verify_cpu_seconds(), time.perf_counter()
        call = stub.Session(iter(requests.get, None), timeout=REQUEST_SECONDS)
        while left:
            message = next(call)
            messages.append(message)
            left -= sum(output.finish_reason != NOT_OVER for output in message.outputs)
        seconds = time.perf_counter() - begun
        spent = services.verify_cpu_seconds() - spent
        requests.put(None)
    answers, failures = _read(messages, len(jobs))
    return Section(answers, failures, seconds, spent)


def spread_of(values: Sequence[float]) -> dict[str, Any]:
    """The median, between which values half of all are, and the standard error of their mean."""
    median = statistics.median(values)
    facts: dict[str, Any] = {"median": round(median, 4), "each": [round(value, 3) for value in values]}
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        facts["quartiles"] = [round(low, 4), round(high, 4)]
        facts["mean"] = round(statistics.fmean(values), 4)
        facts["standard_error"] = round(statistics.stdev(values) / len(values) ** 0.5, 4)
    return facts


def _submit(number: int, job: Job) -> verify_pb2.SessionRequest:
    submit = verify_pb2.Submit(
        request_id=number,
        prompt_token_ids=job.prompt_ids,
        sampling=sampling_of(job),
        speculation=speculation_of(job),
    )
    return verify_pb2.SessionRequest(submit=submit)


def _read(messages: Sequence[Any], requests: int) -> tuple[list[tuple[int, ...]], int]:
    """Each request's tokens, and how many requests failed."""
    tokens: dict[int, list[int]] = defaultdict(list)
    failures = 0
    for message in messages:
        for output in message.outputs:
            tokens[output.request_id] += output.token_ids
            failures += output.finish_reason not in (NOT_OVER, sampling_pb2.FINISH_REASON_LENGTH)
    return [tuple(tokens[number]) for number in range(requests)], failures
