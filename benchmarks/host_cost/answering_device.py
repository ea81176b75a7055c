"""A verify loop whose requests are held to grammars, over a device whose kernels do nothing: answers are known before.

What a request is answered comes from the demo model, asked once on the CPU. A pass of the made-up device samples these
tokens, or, as a model that strays from its grammar, one that is legal nowhere; rows sampled under a mask never stray.
Rows of requests with filters are sampled under masks alone, as on a GPU.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final
from unittest import mock

import numpy as np

from benchmarks.host_cost.silent_device import Clock, SilentModel, silent_ops
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.lib.schemas import schemas
from benchmarks.local_engine.local_loop import EngineConfig, Job, LocalLoop, local_loop
from benchmarks.local_engine.measured_model import limits_of
from slipstream.generation_types import SpeculationOptions
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.forward.masked_sampling import DeviceMasks, MaskedRows
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from slipstream_kernels.models.gpu.gpu_model import PassHandle
from slipstream_kernels.models.gpu.graph.hidden_state_copies import CopyPlan, no_copies
from slipstream_kernels.models.gpu.graph.pass_clock import BehindSeconds, PassSeconds, PassTimes
from slipstream_kernels.models.gpu.graph.pinned_buffers import PinnedBuffer
from slipstream_kernels.token_tree import MAX_ROWS
from verify_service.core.acceptance import NO_TOKEN, child_of
from verify_service.core.request import GenerationRequest, RequestKey
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.grammar.compiler import GrammarCompiler
from verify_service.model_runner.gpu_batch import GpuBatchBuilder

STRAY: Final = 0
"""A token that is legal nowhere."""
_NODES, _TOKENS = 2, 2 + MAX_ROWS
_PROMPT: Final = tuple(range(100, 164))


@dataclass(frozen=True, slots=True)
class HeldJob(Job):
    """A request that is held to a schema. `drafted`: it says nothing of speculation, else it wants none."""

    schema: str = ""
    top_p: float = 1.0
    drafted: bool = False

    def request(self, key: RequestKey) -> GenerationRequest:
        request = Job.request(self, key)
        grammar = Grammar(json_schema=self.schema)
        sampling = replace(request.sampling, top_p=self.top_p, grammar=grammar, ignore_eos=False)
        speculation = SpeculationOptions() if self.drafted else SpeculationOptions(enabled=False)
        return replace(request, sampling=sampling, speculation=speculation)


class _Device:
    """When it will have done all that it was given."""

    def __init__(self) -> None:
        self.begun_at = self.done_at = 0.0

    def add(self, seconds: float) -> None:
        """Behind what it has."""
        self.begun_at = max(self.done_at, time.perf_counter())
        self.done_at = self.begun_at + seconds


class _Mark(Clock):
    """An event that comes once the device has done what it was given before."""

    def __init__(self, device: _Device) -> None:
        super().__init__(0.0)
        self._device = device

    def record(self, *_: object) -> None:
        """Where nothing is under way it comes now."""
        self._until = max(self._device.done_at, time.perf_counter())

    @property
    def at(self) -> float:
        """When it comes."""
        return self._until


class _Times(PassTimes):
    """Of a pass, by the device's clock."""

    def __init__(self, device: _Device) -> None:
        self._span = device.begun_at, device.done_at

    def seconds(self) -> PassSeconds:
        return PassSeconds(0.0, self._span[1] - self._span[0])

    def behind(self, begun: Any, ended: Any) -> BehindSeconds:
        return BehindSeconds(begun.at - self._span[1], ended.at - begun.at)


class AnsweringModel(SilentModel):
    """Says what is known of each request, by its key; strays in a part of the rows that are sampled without masks."""

    answers: Mapping[RequestKey, Sequence[int]]
    has_clock = False
    """Whether passes take any time."""
    strays = 0.0
    pass_factor = 1.0
    """Passes take so many times `pass_costs`."""
    again_seconds = 0.0
    """What sampling rows again takes the device."""
    second_ways = 0
    """How often the host had rows sampled once the pass was over."""
    items: Sequence[ScheduledRequest] = ()
    """Those of the last pass that decide."""

    def set_up(self) -> None:
        """Before the first pass."""
        self._work = _Device()
        self._again: DeviceMasks | None = None
        self._forward.decide_again = self._decide_again  # type: ignore[method-assign]  # a kernel's

    def launch(self, plan: PassPlan, copies: CopyPlan = no_copies, *, again: bool = False) -> PassHandle:
        costs = self.pass_costs()
        rows = float(np.interp(len(plan.token_ids), [rows for _, rows, _ in costs], [cost for *_, cost in costs]))
        self._work.add(self.pass_factor * rows)
        return super().launch(plan, copies, again=again)

    def sample_masked(self, ticket: PassHandle, wanted: MaskedRows) -> list[int]:
        self.second_ways += 1
        self._work.add(self.again_seconds)
        mark = _Mark(self._work)
        mark.record()
        mark.synchronize()
        return [self._answer_at(int(row)) for row in wanted.rows]

    def _receive(
        self, bucket: Bucket, plan: PassPlan, buffer: PinnedBuffer, copies: CopyPlan, *, again: bool
    ) -> PassHandle:
        if self.has_clock and buffer.event is None:
            buffer.event = _Mark(self._work)  # type: ignore[assignment]  # it takes the place of CUDA's
            buffer.again_begun = _Mark(self._work)  # type: ignore[assignment]
            buffer.again_event = _Mark(self._work)  # type: ignore[assignment]
        ticket = super(SilentModel, self)._receive(bucket, plan, buffer, copies, again=again)
        if self.has_clock:
            ticket.times = _Times(self._work)
        return ticket

    def _run(self, bucket: Bucket, layers: int | None = None) -> None:
        plan = self.last_plan
        if plan is not None and len(plan.deciding):
            self._firsts = plan.deciding[:, 0].tolist()
            self._decide(bucket, set())

    def _decide_again(self, bucket: Bucket, plan: object, masked: DeviceMasks) -> None:
        self._work.add(self.again_seconds)
        self._decide(bucket, {row for row in masked.chosen.tolist() if row >= 0})

    def _decide(self, bucket: Bucket, masked: set[int]) -> None:
        results = self._pool.of(bucket).result.numpy()
        for result, item, first in zip(results, self.items, self._firsts, strict=False):
            node = -1
            nodes: list[int] = []
            tokens: list[int] = []
            while True:
                tokens.append(self._sampled(item, len(tokens), under_mask=first + 1 + node in masked))
                child = None if tokens[-1] == NO_TOKEN else child_of(item.tree, node, tokens[-1])
                if child is None:
                    break
                nodes.append(child)
                node = child
            result[0] = len(nodes)
            result[_NODES : _NODES + len(nodes)] = nodes
            result[_TOKENS : _TOKENS + len(tokens)] = tokens

    def _sampled(self, item: ScheduledRequest, depth: int, *, under_mask: bool) -> int:
        state = item.state
        answer, place = self.answers[state.key], len(state.tokens) - state.prompt_length + depth
        if place >= len(answer):
            return NO_TOKEN  # behind the end of the output, where nobody looks
        if under_mask:
            return answer[place]
        if state.parameters.sampling.is_filtered:
            return NO_TOKEN
        strays = Random(state.key.request_id * 4096 + place).random() < self.strays
        return STRAY if strays else answer[place]

    def _answer_at(self, row: int) -> int:
        place = bisect_right(self._firsts, row) - 1
        item, node = self.items[place], row - self._firsts[place] - 1
        assert node < 0 or item.tree is not None
        depth = 0 if item.tree is None or node < 0 else item.tree.depths[node]
        return self._sampled(item, depth, under_mask=True)


def demo_tokenizer() -> GrammarTokenizer:
    """The demo model's, for grammars."""
    config = ModelConfig.from_folder(DEMO_MODEL)
    return load_tokenizer(DEMO_MODEL, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids)


def held_jobs(count: int, seed: int, tokens: int) -> list[HeldJob]:
    """Requests for records of the kinds that tools take, each of another schema."""
    found = [schema for kind, schema in schemas(5 * count, seed) if kind in ("easy", "arguments", "event", "settings")]
    return [
        HeldJob(_PROMPT, tokens, 1.0, seed=number, schema=json.dumps(schema))
        for number, schema in enumerate(found[:count])
    ]


def answers_to(jobs: Sequence[HeldJob], grammars: GrammarCompiler) -> list[list[int]]:
    """What the demo model answers, on the CPU."""
    model = CausalLM.load(DEMO_MODEL, threads=2)
    config = EngineConfig(num_pages=2048, max_running=16, adaptive=False)
    with local_loop(model, config, grammars=grammars) as loop:
        return [answer.token_ids for answer in loop.run(jobs, 16)]


def answering_model(config: EngineConfig) -> AnsweringModel:
    """The demo model's shapes, without its work."""
    weights = GpuWeights.load(DEMO_MODEL, ModelConfig.from_folder(DEMO_MODEL), "cpu", progress=False)
    model = AnsweringModel.from_weights(weights, limits_of(config, 0), ops=silent_ops())
    model.draw()
    model.set_up()
    return model


@contextmanager
def answering_loop(model: AnsweringModel, config: EngineConfig, grammars: GrammarCompiler) -> Iterator[LocalLoop]:
    """A loop over it."""
    build = GpuBatchBuilder.build

    def built(*args: Any) -> Any:
        plan, model.items = build(*args)
        return plan, model.items

    with (
        mock.patch.object(GpuBatchBuilder, "build", built),
        local_loop(model, config, grammars=grammars) as loop,
    ):
        model.has_clock = True
        yield loop
