"""The exchange over real gRPC on loopback, for tests that play the verify loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from slipstream.rpc.server import GrpcServer
from slipstream.v1 import draft_pb2
from slipstream_kernels.token_tree import TokenTree
from support.drafters import WireDrafter, tree_reply
from verify_service.core.acceptance import match_path
from verify_service.core.draft_source import Committed, RequestOpening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.draft_servicer import SERVICE, DraftLinkServicer
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import LinkFacts
from verify_service.hidden_states.device_ring_pool import DeviceRingPool

FACTS = LinkFacts("model", "tokenizer", 100, 128, 2, 512, 64)
KEY = RequestKey(1, 1)
OTHER = RequestKey(1, 2)
DEADLINE = 5.0


@asynccontextmanager
async def served(
    open_seconds: float = 10.0, *, facts: LinkFacts = FACTS, rings: DeviceRingPool | None = None, **config: Any
) -> AsyncIterator[tuple[DraftLink, str]]:
    """A link behind a server on a free port; leaves nothing attached."""
    servicer = DraftLinkServicer(open_seconds=open_seconds)
    servicer.link = link = DraftLink(facts, LinkConfig(**({"deadline": DEADLINE} | config)), rings=rings)
    server = GrpcServer(host="127.0.0.1", port=0, services=[SERVICE], register=servicer.register)
    port = await server.start()
    try:
        yield link, f"127.0.0.1:{port}"
    finally:
        link.close()
        await server.drain(1)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def opening(key: RequestKey = KEY, proposer: str = "p", tokens: tuple[int, ...] = (1, 2, 3)) -> RequestOpening:
    return RequestOpening(
        key=key,
        proposer=proposer,
        token_ids=tokens,
        prompt_length=2,
        sampling=SamplingParams(temperature=0.5, seed=2**63 + 5, logit_bias=((4, 1.5),), stop_token_ids=(9,)),
        choice_index=3,
        tenant="t",
        adapter_id="a",
        cached_length=1,
    )


def committed(
    length: int,
    *tokens: int,
    key: RequestKey = KEY,
    max_nodes: int = 8,
    max_depth: int = 4,
    verified: TokenTree | None = None,
) -> Committed:
    """`verified` is the tree that the step verified; `tokens` are along it, but for the last."""
    took = () if verified is None else verified.path(match_path(verified, tokens[:-1])[0])
    trees = () if verified is None else ((verified, tuple(took)),)
    return Committed(key, tokens, length, max_nodes, max_depth, verified=trees)


async def collect(link: DraftLink, *keys: RequestKey) -> tuple[list[TokenTree | None], float]:
    """What the loop's thread would collect, and how long that took."""
    begun = time.monotonic()
    trees = await asyncio.to_thread(link.collect, keys or (KEY,))
    return trees, time.monotonic() - begun


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the link tells nobody of its counters
            await asyncio.sleep(0.002)


def chains(drafter: WireDrafter, kind: str, record: Any) -> list[draft_pb2.DraftReply]:
    """Answer every record that wants a tree with the two tokens after the root."""
    if kind in {"open", "commit"} and record.max_nodes > 1:
        return [tree_reply(record.stamp, [record.stamp.root_token + 1, record.stamp.root_token + 2])]
    return []
