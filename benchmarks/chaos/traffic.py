"""Clients that ask the same questions over and over, each time in another manner, whatever happens to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random

from benchmarks.lib.mixed_client import Choice, ClientOutcome, MixedClient
from benchmarks.lib.request_mix import PLAIN, Manner, Manners, Question
from benchmarks.lib.server_process import Server

REFERENCE_SECONDS = 300.0
"""Longest silence of a calm server."""
AFTER_FAILURE = (0.5, 5.0)
"""Seconds that a client waits before it asks again: at least, and at most, whatever Retry-After says."""
KILLER = Question(
    -1,
    "grpc",
    "A request under which the verify service ends. " * 60,
    {"max_tokens": 32, "temperature": 0.0, "seed": 1, "ignore_eos": True},
)
"""Long, so that its first token is not there before it does."""
KILLER_MANNER = Manner({"enabled": True, "proposer": "killer", "max_nodes": 4}, streamed=True)
"""Its drafter, in the verify service's process, sends that process SIGKILL: see tests/support/killer_proposer."""
KILLER_PAUSE = 10.0
"""Seconds before it is asked for, and asked for again."""


class Answers:
    """The answers of a calm server to each question, plainly decoded: what any other has to equal."""

    def __init__(self, choices: Mapping[int, Sequence[Choice]]) -> None:
        self._choices = choices

    def differs(self, outcome: ClientOutcome) -> bool:
        """Whether a whole answer is another one."""
        return outcome.answered and list(self._choices[outcome.question.number]) != outcome.choices


async def ask_all(
    server: Server, asked: Sequence[Question], manner: Callable[[Question], Manner], clients: int, patience: float
) -> list[ClientOutcome]:
    """Ask each once, so many at a time."""
    outcomes: list[ClientOutcome] = []
    waiting = iter(asked)

    async def work(client: MixedClient) -> None:
        for question in waiting:
            outcomes.append(await client.ask(question, manner(question), patience))  # noqa: PERF401  # as they come

    async with MixedClient(server.http, server.grpc, Random(0)) as client, asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(work(client))
    return outcomes


async def reference(server: Server, asked: Sequence[Question], clients: int) -> Answers:
    """What a calm server answers; RuntimeError if it does not answer one."""
    outcomes = await ask_all(server, asked, lambda _: PLAIN, clients, REFERENCE_SECONDS)
    if failed := [outcome for outcome in outcomes if not outcome.answered]:
        raise RuntimeError(f"a calm server did not answer: {failed[0].failure}")
    return Answers({outcome.question.number: outcome.choices for outcome in outcomes})


class Traffic:
    """So many clients in a closed loop, until told to end; `outcomes` grows meanwhile.

    What is under way in the end is awaited, as long as `patience` allows.
    """

    def __init__(
        self,
        server: Server,
        asked: Sequence[Question],
        proposers: Sequence[str],
        *,
        clients: int,
        seed: int,
        patience: float,
        faithful: bool = False,
    ) -> None:
        self._server = server
        self._asked = asked
        self._proposers = proposers
        self._clients = clients
        self._seed = seed
        self._patience = patience
        self._faithful = faithful
        self.outcomes: list[ClientOutcome] = []
        self.killers: list[ClientOutcome] = []

    async def run(self, over: asyncio.Event, *, killer: bool = False) -> None:
        """Ask until `over`; with `killer` one more client asks for what ends the verify service."""
        draw = Random(f"reading {self._seed}")
        async with MixedClient(self._server.http, self._server.grpc, draw) as client, asyncio.TaskGroup() as group:
            for number in range(self._clients):
                group.create_task(self._client(client, Random(f"{self._seed} {number}"), over))
            if killer:
                group.create_task(self._killer(client, over))

    async def _client(self, client: MixedClient, draw: Random, over: asyncio.Event) -> None:
        manners = Manners(draw, self._proposers, faithful=self._faithful)
        while not over.is_set():
            question = draw.choice(self._asked)
            outcome = await client.ask(question, manners.next(question), self._patience)
            self.outcomes.append(outcome)
            if outcome.failure is not None:
                least, most = AFTER_FAILURE
                await _wait(over, min(most, max(least, outcome.failure.retry_after or 0.0)))

    async def _killer(self, client: MixedClient, over: asyncio.Event) -> None:
        while not await _wait(over, KILLER_PAUSE):
            self.killers.append(await client.ask(KILLER, KILLER_MANNER, self._patience))


async def _wait(over: asyncio.Event, seconds: float) -> bool:
    """Whether the end came within so many seconds."""
    try:
        await asyncio.wait_for(over.wait(), seconds)
    except TimeoutError:
        return False
    return True
