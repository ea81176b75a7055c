"""Conversations shared out over several gateways, each of which is asked by a process of its own.

A gateway fills a core with its streams, and so does a process that asks: where the target is faster, several of both
stand side by side. What they bring is kept by the process that started them, so a kill loses no more than usual.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from slipstream.client import AsyncClient
from slipstream.completion import Model
from slipstream.rpc.errors import SlipstreamError
from training.answers.asker import FIRST_CONTACT_SECONDS, Asker, GatewayGoneError, served_model
from training.answers.inputs import distinct_prompts
from training.answers.settings import AnswerSettings
from training.prompts.records import Prompt


@dataclass(frozen=True, slots=True)
class Share:
    """What one process asks: every `of`-th prompt of the inputs from `number` on, less those `known` by their keys."""

    inputs: tuple[Path, ...]
    number: int
    of: int
    known: frozenset[bytes]
    address: str
    api_key: str
    concurrency: int
    patience: float
    settings: AnswerSettings
    model: Model
    """What the first gateway serves; the others must serve the same."""

    def prompts(self) -> Iterator[Prompt]:
        """Those to ask, in order."""
        for place, prompt in enumerate(distinct_prompts(self.inputs)):
            if place % self.of == self.number and bytes.fromhex(prompt.key) not in self.known:
                yield prompt


async def ask_all(
    prompts: Iterator[Prompt], asker: Asker, concurrency: int, take: Callable[[dict[str, Any]], None]
) -> None:
    """Ask `concurrency` conversations at a time; `take` is given each before its worker begins the next one."""

    async def work() -> None:
        for prompt in prompts:
            take((await asker.answer(prompt)).document())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


def ask_shares(shares: Sequence[Share], take: Callable[[dict[str, Any]], None]) -> Counter[str]:
    """Have each share asked by a process; `take` is given what comes. Gives how often was tried again, by reason.

    GatewayGoneError where a gateway is gone, refuses or serves another model, RuntimeError where a process ended.
    """
    context = multiprocessing.get_context("spawn")
    retries: Counter[str] = Counter()
    with ExitStack() as stack:
        running: dict[Connection, Share] = {}
        for share in shares:
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_ask_share, args=(share, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(_end, process)
            running[mine] = share
        while running:
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except EOFError:
                    raise RuntimeError(f"the process that asked {running[pipe].address} has ended") from None
                if isinstance(message, str):
                    raise GatewayGoneError(f"{running[pipe].address}: {message}")
                if isinstance(message, Counter):
                    retries += message
                    del running[pipe]
                else:
                    take(message)
    return retries


def _end(process: SpawnProcess) -> None:
    process.terminate()
    process.join()


def _ask_share(share: Share, pipe: Connection) -> None:
    """In a process of its own: sends a record for each conversation, then the counts of retries, or why it gave up."""
    try:
        pipe.send(asyncio.run(_ask(share, pipe)))
    except (GatewayGoneError, SlipstreamError) as error:
        pipe.send(str(error))


async def _ask(share: Share, pipe: Connection) -> Counter[str]:
    async with AsyncClient(share.address, api_key=share.api_key) as client:
        patience = min(share.patience, FIRST_CONTACT_SECONDS)
        model = await served_model(client, share.settings.model, patience)
        if facts_of(model) != facts_of(share.model):
            raise GatewayGoneError(f"it serves {facts_of(model)}, the first gateway {facts_of(share.model)}")
        asker = Asker(client, model, share.settings, share.patience)
        await ask_all(share.prompts(), asker, share.concurrency, pipe.send)
    return asker.retries


def facts_of(model: Model) -> dict[str, Any]:
    """What is written down of a model that answers."""
    return {"name": model.name, "max_context": model.max_context, "vocab_size": model.vocab_size}
