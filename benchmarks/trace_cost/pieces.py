"""What the code of traces itself takes, apart from all else: processor time of spans a request, of traces a step.

The services' own code runs in this process, on requests and steps like those of a server; the plain way and the traced
one take turns. So the figures hold on a machine that other work shares, where whole servers differ by more.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.trace_cost.collector import collector
from gateway.access.access_log import Access
from gateway.access.request_tracing import RequestTracing
from gateway.codec import read_output
from gateway.core.request import ChoiceRequest, Sampling, VerifyInfo
from gateway.generation.generation import FieldNames, Generation, GenerationContext, Running
from gateway.metrics import Metrics
from gateway.openai.chat_output import ChatShape
from gateway.openai.output import OutputOptions, OutputWriter
from gateway.replicas.verify_client import VerifyClient
from gateway.tokens.tokenizer import Tokenizer
from slipstream.generation_types import (
    FinishReason,
    SpeculationOptions,
    SpeculationStep,
    StepTrace,
    Timings,
    Usage,
)
from slipstream.request_context import RequestContext
from slipstream.tracing.otel import OTLP, OtelTracer, make_exporter
from slipstream.tracing.tracer import NullTracer, Tracer
from slipstream.v1 import verify_pb2
from verify_service.core.request import GenerationRequest, RequestKey, StepOutput
from verify_service.server.codec import encode_outputs
from verify_service.server.request_traces import RequestTraces

SPANS: Final = 400
"""Requests of a turn; well below the 2,048 spans that wait at most to be sent."""
STEPS: Final = 400
"""Verify steps of a turn."""
NODES: Final = (4, 16)
TOKENS: Final = (300, 301, 302)
CALLER: Final = RequestContext("request-1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
INFO: Final = VerifyInfo("model", "0123456789abcdef", 1024, 4096, 64, 128, frozenset(), (), "", ("1", "cpu", "exact"))
FLUSH_SECONDS: Final = 60.0

Turn = Callable[[], float]
"""Does one turn, and returns its processor time in microseconds a piece."""


def measure(model: Path, rounds: int) -> dict[str, list[float]]:
    """Added microseconds by piece, of every round."""
    return asyncio.run(_measure(model, rounds))


async def _measure(model: Path, rounds: int) -> dict[str, list[float]]:
    backend = GenerationContext(
        Tokenizer(model), VerifyClient((), timeout=1, resume_seconds=1), Metrics(), Running(), max_buffered=4
    )
    found: dict[str, list[float]] = {}
    with collector() as (endpoint, received):
        os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "200"
        tracer, count = OtelTracer("benchmark", make_exporter(OTLP, endpoint)), 0

        def exported(turn: Callable[[Tracer], None]) -> float:
            """A turn that ends when the SDK's thread has sent its spans; asking whether it has is no cost of spans."""
            nonlocal count
            count += SPANS
            begun, end = time.process_time(), time.monotonic() + FLUSH_SECONDS
            turn(tracer)
            waits = time.thread_time()
            while received() < count:
                if time.monotonic() > end:
                    raise SystemExit("the collector has not received all spans")
                time.sleep(0.02)
            waited = time.thread_time() - waits
            return 1e6 * (time.process_time() - begun - waited) / SPANS

        def alone(turn: Callable[[Tracer], None]) -> float:
            begun = time.process_time()
            turn(NullTracer())
            return 1e6 * (time.process_time() - begun) / SPANS

        generations = [_answered(_generation(backend, trace=False, seed=seed), seed) for seed in range(SPANS)]
        for name, turn in (("gateway", lambda tracer: _gateway_spans(tracer, generations)), ("verify", _verify_spans)):
            found[f"a request's span, {name}"] = [exported(turn) - alone(turn) for _ in range(rounds + 1)][1:]
        tracer.close(FLUSH_SECONDS)
    for nodes in NODES:
        for name, take in (("verify", _verify_steps), ("gateway", partial(_gateway_steps, backend))):
            turns = [take(nodes, trace=trace) for trace in (True, False)]
            pairs = [[turn() for turn in turns] for _ in range(rounds + 1)][1:]
            found[f"a step's trace of {nodes} nodes, {name}"] = [traced - plain for traced, plain in pairs]
    return found


def _generation(backend: GenerationContext, *, trace: bool, seed: int = 7) -> Generation:
    request = ChoiceRequest(
        list(range(40)),
        Sampling(0.7, top_p=0.9, seed=seed, max_tokens=1024),
        SpeculationOptions(trace=trace),
        context=CALLER,
    )
    return Generation([request], INFO, seed, backend, FieldNames("messages"))


def _answered(generation: Generation, number: int) -> Generation:
    """It has its answer, whose figures differ from those of others."""
    steps = [StepOutput(RequestKey(1, 1), TOKENS, step=_step(4, trace=False))] * (1 + number % 7)
    usage = Usage(40 + number, 3 * len(steps), number % 40, len(steps), 4 * len(steps), 2 * len(steps))
    last = StepOutput(RequestKey(1, 1), (9,), finish_reason=FinishReason.LENGTH, usage=usage)
    for output in verify_pb2.SessionResponse.FromString(encode_outputs([*steps, last])).outputs:
        generation.choices[0].feed(read_output(output))
    return generation


def _gateway_spans(tracer: Tracer, generations: Sequence[Generation]) -> None:
    tracing = RequestTracing(tracer)
    for number, generation in enumerate(generations):
        access = Access("POST /v1/chat/completions", "127.0.0.1:1", status="200", context=_context(number))
        tracing.begin(access, "chat")
        access.generates(generation, "model", f"chatcmpl-{number}")
        tracing.end(access)


def _context(number: int) -> RequestContext:
    return RequestContext(f"request-{number}", f"00-{number + 1:032x}-00f067aa0ba902b7-01")


def _verify_spans(tracer: Tracer) -> None:
    traces = RequestTraces(tracer)
    timings = Timings(0.001, 0.02, 1.0)
    for number in range(SPANS):
        usage = Usage(40, 128 + number, 16 * (number % 3), 60 + number % 11, 240 + number % 13, 68 + number % 17)
        key = RequestKey(1, number)
        traces.begin(GenerationRequest(key, (5,) * 40, time.monotonic(), context=_context(number)))
        traces.start([key])
        traces.finish([StepOutput(key, (9,), finish_reason=FinishReason.LENGTH, usage=usage, timings=timings)])


def _step(nodes: int, *, trace: bool) -> SpeculationStep:
    told = StepTrace(
        position=100, token_ids=tuple(range(300, 300 + nodes)), parents=tuple(range(-1, nodes - 1)),
        log_probs=tuple(-0.25 * node for node in range(nodes)), accepted=(0, 1), pass_rows=5, pass_seconds=0.004,
    )  # fmt: skip
    return SpeculationStep(nodes, 2, "draft-model", trace=told if trace else None)


def _verify_steps(nodes: int, *, trace: bool) -> Turn:
    """Verify's side: a step's trace is made and written."""

    def turn() -> float:
        begun = time.process_time()
        for _ in range(STEPS):
            encode_outputs([StepOutput(RequestKey(1, 1), TOKENS, step=_step(nodes, trace=trace))])
        return 1e6 * (time.process_time() - begun) / STEPS

    return turn


def _gateway_steps(backend: GenerationContext, nodes: int, *, trace: bool) -> Turn:
    """The gateway's side: a step is read, and becomes a chunk of the OpenAI API."""
    generation = _generation(backend, trace=trace)
    writer = OutputWriter(ChatShape(("reasoning",)), generation, _OPTIONS, backend.tokenizer)
    writer.opening()
    message = encode_outputs([StepOutput(RequestKey(1, 1), TOKENS, step=_step(nodes, trace=trace))])

    def turn() -> float:
        begun = time.process_time()
        for _ in range(STEPS):
            (output,) = verify_pb2.SessionResponse.FromString(message).outputs
            writer.chunk(generation.choices[0].feed(read_output(output)))
        return 1e6 * (time.process_time() - begun) / STEPS

    return turn


_OPTIONS: Final = OutputOptions(
    "model", "0123456789abcdef", logprobs=False, return_token_ids=False, include_usage=False
)
