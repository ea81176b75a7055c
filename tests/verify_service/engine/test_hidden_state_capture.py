"""A drafter in this process that wants hidden states gets those of every position, whatever becomes of a request.

What it gets is compared, bit for bit, with the states of the same text computed in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from slipstream_kernels.ipc.device_memory import DATA_OFFSET
from slipstream_kernels.models.capture_layers import Bits, Capture
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from support.host_device_memory import HostMemory
from support.verify_loop import OracleTrees, RandomTrees, ScriptedTrees, Target, admitted, running_loop
from verify_service.core.draft_source import Committed, RequestOpening, StateChunk, StateSpan
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import StepHandle
from verify_service.draft_link.slots.state_feed import StateFeed
from verify_service.engine import hidden_state_capture as module
from verify_service.engine.hidden_state_capture import HiddenStateCapture, States
from verify_service.engine.step_queue import Step
from verify_service.hidden_states.device_ring import DeviceRing, RingSlice
from verify_service.hidden_states.rows import HiddenStateHistory, HiddenStateRows
from verify_service.hidden_states.store import HiddenStateStore
from verify_service.model_runner.captured_states import CapturedStates

WANTED = (1, 3)


def states_of(model: CausalLM, tokens: Sequence[int], boundaries: tuple[int, ...] = WANTED) -> Bits:
    config = model.config
    capture = Capture.of(boundaries, len(tokens), num_layers=config.num_layers, hidden_size=config.hidden_size)
    cache = model.new_cache(num_pages=32, page_size=16, scratch_slots=0)
    model.forward(cache, RowBatch.chunk(tokens, 0, range(32), 16), capture)
    return capture.rows


def as_floats(bits: Bits) -> torch.Tensor:
    return torch.from_numpy(bits.copy()).view(torch.bfloat16).float()


@dataclass
class Received:
    """States of one request, by position."""

    tokens: list[int]
    history: HiddenStateHistory | None
    cached: int
    rows: dict[int, Bits] = field(default_factory=dict)

    def take(self, features: HiddenStateRows) -> None:
        for offset, row in enumerate(features.select(WANTED)):
            self.rows[features.first + offset] = row


class Taker:
    """Wraps a test drafter and takes states beside it."""

    def __init__(self, trees: ScriptedTrees, wanted: tuple[int, ...] = WANTED) -> None:
        self.trees = trees
        self.wanted = wanted
        self.is_deaf = False
        self.received: dict[RequestKey, Received] = {}

    def __getattr__(self, name: str):
        return getattr(self.trees, name)

    def wanted_boundaries(self) -> tuple[int, ...]:
        return self.wanted

    def paused(self) -> bool:
        return self.is_deaf

    def begin(self, opening: RequestOpening) -> bool:
        received = Received(list(opening.token_ids), opening.history, opening.cached_length)
        self.received[opening.key] = received
        if opening.history is not None and opening.cached_length:
            stored = opening.history.read(0, opening.cached_length)
            if stored is not None:
                received.take(stored)
        return self.trees.begin(opening)

    def reserve_ring(self, wanted: Sequence[StateSpan], captured: Sequence[int]) -> list[tuple[RingSlice, ...]]:
        return [() for _ in wanted]

    def send_states(self, chunks: Sequence[StateChunk]) -> None:
        for chunk in chunks:
            self.received[chunk.key].take(chunk.features)

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        for committed in commits:
            received = self.received[committed.key]
            assert committed.features is not None
            assert committed.features.first == len(received.tokens) - 1
            assert len(committed.features.rows) == len(committed.token_ids)
            received.take(committed.features)
            received.tokens.extend(committed.token_ids)
        return self.trees.commit(commits)


class RingTaker(Taker):
    """Finds every row in a ring of the device's memory too, with the boundaries in an order of its own."""

    def __init__(self, trees: ScriptedTrees, hidden_size: int) -> None:
        super().__init__(trees)
        self.ring = DeviceRing(HostMemory().allocate(DATA_OFFSET + (1 << 18)), b"")
        self.hidden_size = hidden_size
        self.slots: dict[RequestKey, StateFeed] = {}
        self.found = 0

    def reserve_ring(self, wanted: Sequence[StateSpan], captured: Sequence[int]) -> list[tuple[RingSlice, ...]]:
        slots = [self.slots.setdefault(each.key, StateFeed(WANTED[::-1])) for each in wanted]
        spans = [
            self.ring.reserve(slot, each.first, each.length, self.hidden_size)
            for slot, each in zip(slots, wanted, strict=True)
        ]
        assert all(spans)
        return [(span,) if span else () for span in spans]

    def compare(self, key: RequestKey, features: HiddenStateRows) -> None:
        slot = self.slots[key]
        span = features.ring_slice_for(slot)
        assert span is not None
        position, rows, row_bytes, _ = span.rows(features.first, features.end)
        place = span.offset + (position - span.position) // 2
        found = span.target[place : place + rows * row_bytes // 2].view(rows, -1).view(torch.uint16).numpy()
        assert np.array_equal(found, features.select(slot.boundaries))
        span.reservation.message = self.found + 1
        self.ring.release(self.found, self.found)
        self.found += rows

    def send_states(self, chunks: Sequence[StateChunk]) -> None:
        for chunk in chunks:
            self.compare(chunk.key, chunk.features)
        super().send_states(chunks)

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        for committed in commits:
            assert committed.features is not None
            self.compare(committed.key, committed.features)
        return super().commit(commits)


def request(number: int, prompt: Sequence[int], max_tokens: int = 24, temperature: float = 0.8) -> GenerationRequest:
    params = SamplingParams(temperature=temperature, seed=number, max_tokens=max_tokens, ignore_eos=True)
    return GenerationRequest(RequestKey(0, number), tuple(prompt), arrival=0.0, sampling=params)


def prompts(count: int, low: int = 5, high: int = 90) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(3, 512, random.integers(low, high)).tolist() for _ in range(count)]


def check(model: CausalLM, taker: Taker, keys: Sequence[RequestKey], missing: int = 0) -> None:
    """Every position's state was told but those of the last step, which ends the request, and `missing` first ones."""
    for key in keys:
        received = taker.received[key]
        expected = states_of(model, received.tokens)
        assert sorted(received.rows) == list(range(missing, len(received.tokens) - 1))
        assert all(np.array_equal(row, expected[position]) for position, row in received.rows.items())


@pytest.mark.parametrize("page_size", [1, 16])
def test_prompts_in_chunks_and_accepted_trees(model: CausalLM, page_size: int) -> None:
    config = EngineConfig(
        num_pages=2048 // page_size, page_size=page_size, prefill_chunk=32, max_nodes=16, adaptive=False
    )
    requests = [request(number, prompt) for number, prompt in enumerate(prompts(6))]
    with running_loop(model, config) as runner:
        plain = runner.run(requests)
    texts = {r.key: [*r.prompt_token_ids, *a.token_ids] for r, a in zip(requests, plain, strict=True)}
    taker = Taker(OracleTrees(texts, model.config.vocab_size))
    with running_loop(model, config, taker) as runner:
        answers = runner.run(requests)
        assert runner.loop.state().accepted_tokens > 20
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
    check(model, taker, [r.key for r in requests])


def test_a_device_keeps_the_same_rows(model: CausalLM, twins: Target) -> None:
    """Its arithmetic is another one: rows agree as far as bfloat16 does, and no two positions agree as well."""
    config = EngineConfig(
        num_pages=64, prefill_chunk=32, max_running=4, max_nodes=8, step_nodes=24, adaptive=False, max_context=160
    )
    requests = [request(number, prompt, temperature=0.0) for number, prompt in enumerate(prompts(4))]
    with running_loop(twins, config) as runner:
        plain = runner.run(requests)
    texts = {r.key: [*r.prompt_token_ids, *a.token_ids] for r, a in zip(requests, plain, strict=True)}
    taker = RingTaker(OracleTrees(texts, model.config.vocab_size), model.config.hidden_size)
    with running_loop(twins, config, taker) as runner:
        answers = runner.run(requests)
        assert runner.loop.state().accepted_tokens > 20
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
    assert taker.found == sum(len(received.rows) for received in taker.received.values())
    for received in taker.received.values():
        expected = as_floats(states_of(model, received.tokens))
        assert sorted(received.rows) == list(range(len(received.tokens) - 1))
        for position, row in received.rows.items():
            apart = torch.linalg.norm(as_floats(row) - expected, dim=1)
            assert int(apart.argmin()) == position
            assert apart[position] < 0.03 * torch.linalg.norm(expected[position])


def test_a_prefix_hit_is_read_from_beside_the_pages(model: CausalLM) -> None:
    config = EngineConfig(num_pages=128, feature_bytes=1 << 24, adaptive=False)
    taker = Taker(RandomTrees(model.config.vocab_size))
    (prompt,) = prompts(1, 70, 71)
    with running_loop(model, config, taker) as runner:
        runner.run([request(1, prompt)])
        runner.run([request(2, [*prompt[:50], 7, 8, 9])])
        state = runner.loop.state()
        assert (state.feature_boundaries, state.feature_pages) == (2, state.pages_cached)
    assert taker.received[RequestKey(0, 2)].cached == 48
    check(model, taker, list(taker.received))


def test_without_room_beside_the_pages_a_hit_has_no_states(model: CausalLM) -> None:
    taker = Taker(RandomTrees(model.config.vocab_size))
    (prompt,) = prompts(1, 70, 71)
    with running_loop(model, EngineConfig(num_pages=128, adaptive=False), taker) as runner:
        runner.run([request(1, prompt)])
        runner.run([request(2, [*prompt[:50], 7, 8, 9])])
    check(model, taker, [RequestKey(0, 1)])
    check(model, taker, [RequestKey(0, 2)], missing=48)


def test_preempted_requests_miss_nothing(model: CausalLM) -> None:
    config = EngineConfig(num_pages=14, page_size=8, feature_bytes=1 << 24, max_nodes=4, adaptive=False)
    taker = Taker(RandomTrees(model.config.vocab_size))
    requests = [request(number, prompt, max_tokens=40) for number, prompt in enumerate(prompts(3, 20, 30))]
    with running_loop(model, config, taker) as runner:
        runner.run(requests)
        assert runner.loop.state().preemptions > 0
    check(model, taker, [r.key for r in requests])


def test_a_taker_that_fails_costs_no_request(model: CausalLM) -> None:
    class Failing(Taker):
        def send_states(self, chunks: Sequence[StateChunk]) -> None:
            raise RuntimeError

        def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
            return self.trees.commit(commits)

        def wanted_boundaries(self) -> tuple[int, ...]:
            if self.received:
                raise RuntimeError
            return WANTED

    config = EngineConfig(num_pages=64, prefill_chunk=16)
    requests = [request(number, prompt) for number, prompt in enumerate(prompts(2))]
    with running_loop(model, config) as runner:
        plain = [answer.token_ids for answer in runner.run(requests)]
    taker = Failing(RandomTrees(model.config.vocab_size))
    with running_loop(model, config, taker) as runner:
        assert [answer.token_ids for answer in runner.run(requests)] == plain


def test_nothing_is_captured_for_drafters_that_hang_and_what_is_kept_stays() -> None:
    engine, taker = Recorder(), Taker(RandomTrees(8), (2, 5))
    store = HiddenStateStore(num_pages=4, page_size=4, hidden_size=8, limit=1 << 20)
    features = HiddenStateCapture(engine, store, taker)
    for taker.is_deaf in (False, True, True, False):
        features.prepare()
        assert store.boundaries == (2, 5)
    assert engine.captured == [(2, 5), (), (2, 5)]
    taker.is_deaf = True
    always = HiddenStateCapture(engine, store, taker, (2,))
    always.prepare()
    assert engine.captured[3:] == [(2, 5)], "the operator wants them kept"


class Recorder:
    """An engine that notes what it is to capture, and has the states of one step. `asked`: how often for these."""

    def __init__(self) -> None:
        self.captured: list[tuple[int, ...]] = []
        self.step: CapturedStates | None = None
        self.asked = 0

    def states(self, launched: StepHandle) -> CapturedStates | None:
        self.asked += 1
        return self.step

    def capture(self, boundaries: tuple[int, ...]) -> None:
        self.captured.append(boundaries)


def test_what_is_captured_follows_what_is_asked_for() -> None:
    engine, taker, now = Recorder(), Taker(RandomTrees(8), ()), [0.0]
    store = HiddenStateStore(num_pages=4, page_size=4, hidden_size=8, limit=1 << 20)
    features = HiddenStateCapture(engine, store, taker, clock=lambda: now[0])

    def after(seconds: float, *wanted: int) -> list[tuple[int, ...]]:
        now[0] += seconds
        taker.wanted = wanted
        features.prepare()
        told, engine.captured = engine.captured, []
        assert not told or store.boundaries == told[-1]
        return told

    assert after(1) == []
    assert after(1, 2, 5) == [(2, 5)]
    assert after(1, 5) == []
    assert after(module.LINGER_SECONDS + 1, 5) == [(5,)]
    assert after(1, 3, 5) == [(3, 5)]
    assert after(1) == []
    assert after(1, 3, 5) == []
    assert after(module.LINGER_SECONDS - 1) == []
    assert after(2) == [()]
    assert store.nbytes == 0


def test_what_a_step_captured_for_others_is_not_kept() -> None:
    """Drafters come and go between a step and when its states are kept, which is behind the next step's launch."""
    engine, taker, now = Recorder(), Taker(RandomTrees(8), ()), [0.0]
    store = HiddenStateStore(num_pages=4, page_size=4, hidden_size=8, limit=1 << 20)
    features = HiddenStateCapture(engine, store, taker, clock=lambda: now[0])
    state = admitted(EngineConfig(num_pages=8), range(10, 14))
    state.kv.pages, state.kv.num_computed_tokens = [0], 3
    item = ScheduledRequest(state, 1)
    step = Step([item], StepHandle([item]), 0.0)

    def kept(captured: tuple[int, ...], wanted: tuple[int, ...]) -> HiddenStateRows | None:
        taker.wanted, now[0] = captured, now[0] + module.LINGER_SECONDS + 1
        features.prepare()
        rows = np.full((1, 8 * len(captured)), 7, np.uint16)
        engine.step = CapturedStates(captured, lambda: rows, rows.shape[1], {item: range(1)}, {}, lambda: None)
        features.take(step, [item], [item])
        taker.wanted, now[0] = wanted, now[0] + module.LINGER_SECONDS + 1
        features.prepare()
        features.keep()
        return store.read(state.kv.pages, 3, 4)

    assert kept((2,), (2, 5)) is None
    assert kept((2, 5), (2,)) is None
    same = kept((2,), (2,))
    assert same is not None
    assert same.rows.tolist() == [[7] * 8]


def test_states_that_no_prompt_waits_for_are_taken_once_they_are_asked_for() -> None:
    engine, taker = Recorder(), Taker(RandomTrees(8), (2,))
    features = HiddenStateCapture(engine, HiddenStateStore(num_pages=4, page_size=4, hidden_size=8, limit=1024), taker)
    features.prepare()
    state = admitted(EngineConfig(num_pages=8), range(10, 14))
    state.kv.num_computed_tokens = 3
    root = ScheduledRequest(state, 1)
    state.kv.num_computed_tokens = 2
    part, prompt = ScheduledRequest(state, 1), ScheduledRequest(state, 2)

    def asked_by(item: ScheduledRequest, *calls: Callable[[Callable[[], States]], object]) -> list[int]:
        """How often the engine was asked for states in all: when they were to be taken, and after each call."""
        engine.asked = 0
        taken = features.take(Step([item], StepHandle([item]), 0.0), [item], [item] if item.decides else [])
        counts = [engine.asked]
        for call in calls:
            call(taken)
            counts.append(engine.asked)
        return counts

    def keep(_: object) -> None:
        features.keep()

    assert asked_by(root, lambda taken: taken(), keep) == [0, 1, 1]
    assert asked_by(root, keep, lambda taken: taken()) == [0, 1, 1]
    assert asked_by(root, lambda _: features.keep(state), keep) == [0, 1, 1]
    assert asked_by(part) == asked_by(prompt) == [1]
    taker.wanted = (2, 5)
    assert asked_by(root, lambda _: features.prepare()) == [0, 1], "before the memory changes"
