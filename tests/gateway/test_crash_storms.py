"""Storms of losses in virtual time: deadlines hold, the cause is found, nobody else is blamed, and work gets done."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.verify_client import VerifyClient
from slipstream.rpc.errors import InternalError, ResourceExhaustedError, SlipstreamError, UnavailableError
from support.virtual_verify import Machine, VirtualReplica, run_virtually, token_at

RESUME_SECONDS = 60.0
KILLER = 499
"""First token of prompts that end the service; all others are lower."""


@dataclass(slots=True)
class Outcome:
    """What became of one request: its error, if any, its tokens, and the longest time from a loss to what came next."""

    prompt: tuple[int, ...]
    began: float
    tokens: list[int] = field(default_factory=list)
    error: SlipstreamError | None = None
    pause: float = 0.0
    latest: float = 0.0


class Storm:
    """Clients in front of one service, each with one request after the other until `seconds` have passed."""

    def __init__(self, seed: int, machine: Machine, seconds: float) -> None:
        self.draw = random.Random(seed)
        self.machine = machine
        self.seconds = seconds
        self.outcomes: list[Outcome] = []
        self.replica: VirtualReplica

    async def run(self, clients: int, kill_every: float = 0.0, killers_at: tuple[float, ...] = ()) -> None:
        loop = asyncio.get_running_loop()
        self.end = loop.time() + self.seconds
        connect = partial(VirtualReplica, machine=self.machine)
        client = VerifyClient(["a"], timeout=1.0, resume_seconds=RESUME_SECONDS, connect=connect)
        (self.replica,) = client._replicas
        await client.start()
        await asyncio.sleep(self.machine.start_seconds + 1.0)
        assert client.ready
        tasks = [asyncio.create_task(self._client(client)) for _ in range(clients)]
        tasks += [asyncio.create_task(self._killer(client, at)) for at in killers_at]
        if kill_every:
            tasks.append(asyncio.create_task(self._kill(kill_every)))
        await asyncio.gather(*tasks)
        assert not len(client._parked)
        assert not len(client._deadlines)
        assert not len(client._quarantine)
        await client.close()

    def innocents(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.prompt[0] != KILLER]

    def killers(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.prompt[0] == KILLER]

    async def _kill(self, mean: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self.end:
            await asyncio.sleep(self.draw.expovariate(1.0 / mean))
            self.replica.kill()

    async def _client(self, client: VerifyClient) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self.end:
            prompt = tuple(self.draw.randrange(KILLER) for _ in range(self.draw.choice((4, 40, 40, 400))))
            outcome = await self._ask(client, prompt, self.draw.choice((10, 100, 400)))
            await asyncio.sleep(5.0 if outcome.error else self.draw.expovariate(1.0))

    async def _killer(self, client: VerifyClient, at: float) -> None:
        """Repeats itself until it is told not to."""
        await asyncio.sleep(at)
        for _ in range(10):
            if isinstance((await self._ask(client, (KILLER, 5, 6), 100)).error, InternalError):
                return
            await asyncio.sleep(5.0)

    async def _ask(self, client: VerifyClient, prompt: tuple[int, ...], tokens: int) -> Outcome:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        outcome = Outcome(prompt, loop.time(), latest=loop.time())
        self.outcomes.append(outcome)

        def deliver(output: StepOutput) -> None:
            assert outcome.error is None, "nothing comes after an error"
            lost = self.replica.lost_since(outcome.latest)
            outcome.pause = max(outcome.pause, 0.0 if lost is None else loop.time() - lost)
            outcome.latest = loop.time()
            outcome.tokens += output.token_ids
            outcome.error = output.error
            if output.finish_reason is not None:
                over.set()

        try:
            client.submit([ResumableStream(ChoiceRequest(prompt, Sampling(max_tokens=tokens, seed=1)), deliver)])
        except (InternalError, UnavailableError, ResourceExhaustedError) as error:
            outcome.error = error
            return outcome
        async with asyncio.timeout(10 * RESUME_SECONDS):
            await over.wait()
        decided = [token_at(prompt, len(prompt) + index) for index in range(tokens)]
        assert outcome.tokens == (decided if outcome.error is None else decided[: len(outcome.tokens)])
        return outcome


def virtually(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Storm], **arguments: object) -> Storm:
    storms: list[Storm] = []

    async def main() -> None:
        storms.append(make())
        await storms[0].run(**arguments)  # type: ignore[arg-type]  # as the test says

    with monkeypatch.context() as patches:
        run_virtually(patches.setattr, main())
    return storms[0]


def check_innocents(storm: Storm) -> None:
    """Nobody is told not to repeat, and nobody waits beyond the deadline from the first loss without a token."""
    for outcome in storm.innocents():
        assert outcome.error is None or isinstance(outcome.error, UnavailableError), outcome
        if isinstance(outcome.error, UnavailableError):
            assert outcome.error.retry_after, outcome
        assert outcome.pause <= RESUME_SECONDS + 0.1, outcome


@pytest.mark.parametrize("seed", range(6))
def test_random_kills_convict_nobody_and_leave_time_for_work(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    machine, clients = Machine(start_seconds=(2.0, 5.0, 9.0)[seed % 3]), (1, 8, 16, 48)[seed % 4]
    storm = virtually(monkeypatch, lambda: Storm(seed, machine, 500.0), clients=clients, kill_every=18.0)
    calm = virtually(monkeypatch, lambda: Storm(seed, machine, 120.0), clients=clients)
    assert storm.replica.kills > 10
    check_innocents(storm)
    assert storm.replica.tokens / storm.replica.up_seconds > 0.5 * calm.replica.tokens / calm.replica.up_seconds


@pytest.mark.parametrize("position", [0, 50])
@pytest.mark.parametrize("clients", [0, 3, 16, 48])
@pytest.mark.parametrize("news", [0.002, 0.03], ids=["told", "lost"])
def test_a_killer_is_found_by_few_losses(
    monkeypatch: pytest.MonkeyPatch, clients: int, position: int, news: float
) -> None:
    """Whether or not the news of what had begun arrives before the service ends.

    Where six times as many wait as can run, the deadline may come first, and the cause is found when it is repeated.
    """
    machine = Machine(fatal={KILLER: position}, news_seconds=news)
    storm = virtually(monkeypatch, lambda: Storm(3, machine, 60.0), clients=clients, killers_at=(20.0,))
    check_innocents(storm)
    *earlier, last = storm.killers()
    assert isinstance(last.error, InternalError)
    crowded = clients > 2 * machine.lines
    assert len(earlier) <= crowded
    assert storm.replica.kills <= (8 if crowded else 5)
    assert crowded or all(outcome.error is None for outcome in storm.innocents())


@pytest.mark.parametrize("seed", range(4))
def test_killers_are_found_in_a_storm(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    machine = Machine(fatal={KILLER: 0 if seed % 2 else 30}, start_seconds=4.0)
    storm = virtually(
        monkeypatch, lambda: Storm(seed, machine, 500.0), clients=16, kill_every=18.0, killers_at=(30.0, 200.0)
    )
    check_innocents(storm)
    assert sum(isinstance(outcome.error, InternalError) for outcome in storm.killers()) == 2


def test_a_suspect_that_is_repeated_is_not_taken_for_innocent(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(fatal={KILLER: 0}, start_seconds=40.0)  # of which the deadline leaves room for one
    storm = virtually(monkeypatch, lambda: Storm(1, machine, 150.0), clients=8, killers_at=(30.0,))
    assert [type(outcome.error) for outcome in storm.killers()] == [UnavailableError, InternalError]
    assert storm.replica.kills == 3
