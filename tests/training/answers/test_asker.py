"""Asking a server that is full."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.client import AsyncClient
from slipstream.rpc.errors import ResourceExhaustedError
from support.cluster import Cluster
from training.answers.asker import Asker, GatewayGoneError
from training.answers.settings import AnswerSettings
from training.prompts.records import Prompt, Turn

PROMPT = Prompt((Turn("user", "Hello"),), "file:1")


@pytest.fixture(scope="module")
def address(demo_model):
    with Cluster(demo_model, verify_args=("--max-running", "1", "--max-queued", "1")) as cluster:
        yield cluster.gateway_grpc


async def fill(client):
    """Requests that hold the one place to run and the one to wait, as the refusal of another tells."""
    tasks = [asyncio.ensure_future(client.generate("Once", ignore_eos=True, temperature=0)) for _ in range(4)]
    done, held = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    assert all(isinstance(task.exception(), ResourceExhaustedError) for task in done)
    return held


def test_a_full_queue_is_tried_again_until_there_is_room(address):
    async def ask():
        async with AsyncClient(address) as client:
            (model,) = await client.list_models()
            held = await fill(client)
            asker = Asker(client, model, AnswerSettings(max_tokens=4), patience=60.0)
            asking = asyncio.ensure_future(asker.answer(PROMPT))
            while not asker.retries:  # noqa: ASYNC110  # a counter that has no event
                await asyncio.sleep(0.01)
            for task in held:
                task.cancel()
            return await asking, asker.retries

    answered, retries = asyncio.run(ask())
    assert answered.failure == ""
    assert answered.completion_tokens > 0
    assert retries["ResourceExhausted"] >= 1


def test_patience_ends(address):
    async def ask():
        async with AsyncClient(address) as client:
            (model,) = await client.list_models()
            held = await fill(client)
            try:
                await Asker(client, model, AnswerSettings(), patience=0.0).answer(PROMPT)
            finally:
                for task in held:
                    task.cancel()

    with pytest.raises(GatewayGoneError, match="no answer for 0 s"):
        asyncio.run(ask())
