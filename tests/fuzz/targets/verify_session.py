"""Messages of a session into a verify service with a real model and loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import ClassVar

import grpc

from fuzz.messages import made
from fuzz.raw_bytes import joined, parted
from fuzz.rpc_context import Aborted, CallContext, check_code
from fuzz.target import BrokenError, Target
from slipstream.v1 import sampling_pb2, verify_pb2
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.models import make_tiny_model
from support.served_verify import Served
from verify_service.core.engine_config import EngineConfig
from verify_service.draft_link.link_config import LinkConfig
from verify_service.server.verify_servicer import Backend, VerifyServicer

_CONTEXT = 48
_VOCABULARY = 512
_PROBE = 2**60
"""Id of the request whose answer is known."""


def _submit(random: Random) -> verify_pb2.SessionRequest:
    temperature = random.choice((0.0, 0.7, 1.0))
    submit = verify_pb2.Submit(
        request_id=random.randrange(4),
        prompt_token_ids=[random.randrange(_VOCABULARY) for _ in range(random.choice((1, 3, 20)))],
        sampling=sampling_pb2.SamplingParams(max_tokens=random.choice((1, 2, 4)), temperature=temperature, seed=1),
    )
    if random.random() < 0.3:
        submit.output_token_ids.append(random.randrange(_VOCABULARY))
    if random.random() < 0.3:
        submit.sampling.logprobs = random.randrange(4)
        submit.sampling.logit_bias[random.randrange(_VOCABULARY)] = 5.0
        submit.sampling.top_k, submit.sampling.top_p, submit.sampling.min_p = 40, 0.9, 0.1
    if random.random() < 0.2:
        submit.speculation.max_nodes = 4
    return verify_pb2.SessionRequest(submit=submit)


def _cancel(random: Random) -> verify_pb2.SessionRequest:
    return verify_pb2.SessionRequest(cancel=verify_pb2.Cancel(request_id=random.randrange(4)))


_MAKE: tuple[Callable[[Random], verify_pb2.SessionRequest], ...] = (_submit, _submit, _submit, _cancel)


class VerifySession(Target):
    """Each request of a session has one end, or the session ends with a status that blames it; no page is lost.

    The tokens of a known request stay what they were.
    """

    name: ClassVar[str] = "verify_session"
    share: ClassVar[int] = 50

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        model = CausalLM.load(make_tiny_model(folder / "m", max_context=_CONTEXT, hidden_size=64, heads=1), threads=1)
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start(model))
        self._known = self._probe()

    async def _start(self, model: CausalLM) -> None:
        self._served = Served(model, EngineConfig(num_pages=8, page_size=16, max_running=4, max_queued=8), LinkConfig())
        self._served.loop.start()
        self._served.verify.backend = Backend(
            self._served.facts, self._served.loop, self._served.link, self._served.adapters
        )

    def make(self, random: Random) -> bytes:
        return joined(made(random, _MAKE) for _ in range(random.choice((1, 1, 2, 4))))

    def check(self, data: bytes) -> None:
        messages = parted(data)
        context = CallContext()
        self._loop.run_until_complete(asyncio.wait_for(_session(self._served.verify, messages, context), 60))
        check_code(context, (grpc.StatusCode.INVALID_ARGUMENT,))
        _check_outputs(messages, context)

    def settle(self) -> None:
        if (tokens := self._probe()) != self._known:
            raise BrokenError(f"tokens {tokens}, before {self._known}")
        if not self._served.loop.wait_idle(60):
            raise BrokenError("requests run on")
        state = self._served.loop.state()
        if state.running or state.queued or state.pages_free != state.pages_total - state.pages_cached:
            raise BrokenError(f"left behind: {state}")

    def close(self) -> None:
        self._served.loop.stop()
        self._loop.close()

    def _probe(self) -> list[int]:
        sampling = sampling_pb2.SamplingParams(max_tokens=16, temperature=0.8, seed=7, ignore_eos=True)
        submit = verify_pb2.Submit(request_id=_PROBE, prompt_token_ids=[5, 6, 7, 8], sampling=sampling)
        context = CallContext()
        message = verify_pb2.SessionRequest(submit=submit).SerializeToString()
        self._loop.run_until_complete(asyncio.wait_for(_session(self._served.verify, [message], context), 60))
        outputs = [output for each in context.written for output in verify_pb2.SessionResponse.FromString(each).outputs]
        return [token for output in outputs for token in output.token_ids]


async def _session(servicer: VerifyServicer, messages: list[bytes], context: CallContext) -> None:
    async def requests() -> AsyncIterator[bytes]:
        for message in messages:
            yield message
            await asyncio.sleep(0)

    try:
        await servicer.session(requests(), context)
    except Aborted:
        return


def _check_outputs(messages: list[bytes], context: CallContext) -> None:
    """One end for each request of a session that was not ended, tokens within the vocabulary and the limits."""
    lengths: dict[int, int] = {}
    ended: set[int] = set()
    for response in map(verify_pb2.SessionResponse.FromString, context.written):
        for output in response.outputs:
            request = output.request_id
            lengths[request] = lengths.get(request, 0) + len(output.token_ids)
            if lengths[request] > _CONTEXT * len(messages) or any(token >= _VOCABULARY for token in output.token_ids):
                raise BrokenError(f"tokens of request {request}: {output}")
            if output.finish_reason != sampling_pb2.FINISH_REASON_UNSPECIFIED:
                ended.add(request)
            if output.error.code in (grpc.StatusCode.INTERNAL.value[0], grpc.StatusCode.UNKNOWN.value[0]):
                raise BrokenError(f"an internal error: {output}")
    if context.code is None and ended != lengths.keys() | _submitted(messages):
        raise BrokenError(f"requests {_submitted(messages)} were submitted, {ended} answered")


def _submitted(messages: list[bytes]) -> set[int]:
    kinds = map(verify_pb2.SessionRequest.FromString, messages)
    return {kind.submit.request_id for kind in kinds if kind.WhichOneof("kind") == "submit"}
