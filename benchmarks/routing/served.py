"""Real verify services of a small model, each a process, behind the gateway's client with each policy in turns."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.routing.figures import Figures
from gateway.config import RoutingName
from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.routing import policy_named
from gateway.replicas.verify_client import VerifyClient
from launcher.services.commands import join_address, split_address
from launcher.services.free_ports import free_ports
from launcher.services.process import ServiceCommand, ServiceProcess, Spawner
from launcher.services.readiness import wait_serving
from slipstream.rpc.errors import SlipstreamError

_READY_SECONDS = 120.0
_ANSWER_SECONDS = 300.0
_END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """`tenants` with a prefix each send one question after another, `concurrency` at a time; 0: prompts share nothing.

    `pages` is what each service's cache holds.
    """

    services: int = 2
    pages: int = 560
    tenants: int = 12
    prefix_tokens: int = 1200
    question_tokens: int = 60
    output_tokens: int = 8
    requests: int = 72
    concurrency: int = 4


@dataclass(slots=True)
class _Answer:
    began: float
    first_token_at: float = 0.0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    error: SlipstreamError | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, output: StepOutput) -> None:
        if output.token_ids and not self.first_token_at:
            self.first_token_at = time.monotonic()
        if output.cached_tokens is not None:
            self.cached_tokens = output.cached_tokens
        if output.finish_reason is not None:
            self.error = output.error
            self.ended.set()


@contextmanager
def services(model: Path, load: ServedLoad) -> Iterator[list[str]]:
    """Start verify services on free ports, which end with this process, however it ends; their addresses."""
    addresses = [join_address("127.0.0.1", port) for port in free_ports(load.services)]
    flags = ("--model", str(model), "--device", "cpu", "--threads", "1", "--num-pages", str(load.pages))
    command = (sys.executable, "-m", "verify_service", *flags, "--log-level", "error", "--port")
    spawner = Spawner()
    processes: list[ServiceProcess] = []
    try:
        for address in addresses:
            arguments = (*command, str(split_address(address)[1]))
            processes.append(ServiceProcess(ServiceCommand("verify", arguments, address), spawner))
        wait_serving(processes, time.monotonic() + _READY_SECONDS)
        yield addresses
    finally:
        for process in processes:
            process.stop(_END_SECONDS)


async def measure(addresses: Sequence[str], name: RoutingName, load: ServedLoad, seed: int) -> Figures:
    """Send all requests by a policy, and count those behind the first third. Each seed has prompts of its own."""
    client = VerifyClient(addresses, timeout=5.0, resume_seconds=0.0, policy=policy_named(name))
    await client.start()
    try:
        async with asyncio.timeout(_READY_SECONDS):
            while sum(replica.ready for replica in client.replicas) < len(addresses):  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.05)
        todo = iter(_requests(load, seed))
        answers: list[_Answer] = []

        async def ask() -> None:
            for request in todo:
                answer = _Answer(time.monotonic(), prompt_tokens=len(request.prompt_token_ids))
                answers.append(answer)
                client.submit([ResumableStream(request, answer.take)])
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await answer.ended.wait()
                if answer.error is not None:
                    raise answer.error

        await asyncio.gather(*(ask() for _ in range(load.concurrency)))
    finally:
        await client.close()
    counted = answers[len(answers) // 3 :]
    times = [answer.first_token_at - answer.began for answer in counted]
    cached, tokens = (sum(each.cached_tokens for each in counted), sum(each.prompt_tokens for each in counted))
    return Figures.of(times, cached / tokens)


def _requests(load: ServedLoad, seed: int) -> list[ChoiceRequest]:
    chance = random.Random(seed)

    def tokens(count: int) -> array[int]:
        return array("I", (chance.randrange(10, 8000) for _ in range(count)))

    prefixes = [tokens(load.prefix_tokens) for _ in range(load.tenants)]
    found: list[ChoiceRequest] = []
    for _ in range(load.requests):
        tenant = chance.randrange(load.tenants) if load.tenants else 0
        prompt = prefixes[tenant] + tokens(load.question_tokens) if load.tenants else tokens(load.prefix_tokens)
        sampling = Sampling(temperature=0.0, seed=1, max_tokens=load.output_tokens, ignore_eos=True)
        found.append(ChoiceRequest(prompt, sampling, tenant=f"{seed}-{tenant}"))
    return found
