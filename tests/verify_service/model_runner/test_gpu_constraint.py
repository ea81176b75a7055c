"""What a GPU's steps wait for grammars, by the device's clock, and which masks are begun before a pass is over."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream_kernels.models.gpu.graph.pass_clock import BehindSeconds, PassSeconds
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.grammar.compiler import _compiled
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.request_grammar import RequestGrammar
from verify_service.model_runner.gpu_constraint import GpuConstraint
from verify_service.model_runner.masks_ahead import MasksAhead

GREEDY, FILTERED = SamplingParams(temperature=0.0, seed=1), SamplingParams(temperature=1.0, top_p=0.9, seed=1)


class Ticket:
    """A pass of 4 ms; what is queued behind it begins 1 ms later, and takes 2 ms."""

    bucket = "a shape"

    def __init__(self) -> None:
        self.times: Any = self
        self.over = False
        self.queued: np.ndarray | None = None

    def done(self) -> bool:
        return self.over

    def seconds(self) -> PassSeconds:
        return PassSeconds(0.0, 0.004)

    def results(self) -> np.ndarray:
        self.over = True
        return np.zeros((2, 130), np.int32)

    def again_seconds(self) -> BehindSeconds | None:
        return BehindSeconds(0.001, 0.002) if self.queued is not None and len(self.queued) else None


class Model:
    """Has room for masks."""

    decides_again = True
    config = SimpleNamespace(vocab_size=512)

    def __init__(self) -> None:
        self.mask_rows = np.zeros((32, 16), np.uint32)

    def decide_again(self, ticket: Ticket, rows: np.ndarray) -> None:
        ticket.queued = rows


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    return load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))


@pytest.fixture
def constraint() -> GpuConstraint:
    return GpuConstraint(Model(), lambda _: None)  # type: ignore[arg-type]


def held(tokenizer: GrammarTokenizer, params: SamplingParams) -> ScheduledRequest:
    state = admitted(EngineConfig(num_pages=8), [9, 9, 9], sampling=params)
    state.grammar = RequestGrammar(_compiled(Grammar(regex="[ab]{6}"), tokenizer, ForcedTexts(tokenizer)))
    (a,) = tokenizer.tokens.tokenize_str("a")
    return ScheduledRequest(state, 1, TokenTree.chain([a, a]))


def step(constraint: GpuConstraint, items: list[ScheduledRequest], launched_at: float | None = None) -> MasksAhead:
    """What is computed and sent for a pass of these."""
    ahead, ticket = constraint.masks_for(items), Ticket()
    assert ahead is not None
    ahead.launched_at = time.perf_counter() if launched_at is None else launched_at
    constraint.send(ticket, ahead, items, [3 * place for place in range(len(items))])  # type: ignore[arg-type]
    constraint.results(ticket, ahead, items)  # type: ignore[arg-type]
    assert ticket.queued is not None
    found = [sorted(ahead.rows_of(item)) for item in items]
    assert sorted(ticket.queued[ticket.queued >= 0].tolist()) == sorted(
        3 * place + row for place, rows in enumerate(found) for row in rows
    )
    return ahead


def test_what_the_pass_left_to_be_sampled_under_masks_is_no_wait(
    tokenizer: GrammarTokenizer, constraint: GpuConstraint
) -> None:
    """A step waits until these masks are there; rows that are sampled once more make it longer as well."""
    filtered, straying = held(tokenizer, FILTERED), held(tokenizer, GREEDY)
    step(constraint, [filtered])
    assert (constraint.seconds.masks, constraint.seconds.samples) == pytest.approx((0.001, 0.002))
    assert straying.state.grammar is not None
    straying.state.grammar.end_step(strayed=True)
    step(constraint, [straying])
    assert (constraint.seconds.masks, constraint.seconds.samples) == pytest.approx((0.004, 0.002))
    both = step(constraint, [filtered, straying])
    assert (both.sampled, both.sampled_anew) == (6, 3)
    assert (constraint.seconds.masks, constraint.seconds.samples) == pytest.approx((0.006, 0.003))
    assert constraint.seconds.checks == 0.0


def test_a_step_without_masks_waits_for_none(tokenizer: GrammarTokenizer, constraint: GpuConstraint) -> None:
    step(constraint, [held(tokenizer, GREEDY)])
    assert constraint.seconds == replace(constraint.seconds, masks=0.0, samples=0.0)


def test_masks_of_nodes_are_begun_if_they_are_expected_in_time(
    tokenizer: GrammarTokenizer, constraint: GpuConstraint
) -> None:
    """What passes take is known from the second on; roots are computed as long as the pass runs."""
    filtered, straying = held(tokenizer, FILTERED), held(tokenizer, GREEDY)
    assert straying.state.grammar is not None
    straying.state.grammar.end_step(strayed=True)
    items = [filtered, straying]
    begun = time.perf_counter()
    ahead = step(constraint, items, launched_at=begun - 60)
    assert [sorted(ahead.of(item)) for item in items] == [[0, 1, 2], [0, 1, 2]]
    ahead = step(constraint, items, launched_at=begun - 60)
    assert [sorted(ahead.of(item)) for item in items] == [[0], [0]]
    ahead = step(constraint, items, launched_at=begun + 60)
    assert [sorted(ahead.of(item)) for item in items] == [[0, 1, 2], [0, 1, 2]]


def test_where_one_has_strayed_all_roots_get_their_masks_be_the_pass_over(
    tokenizer: GrammarTokenizer, constraint: GpuConstraint
) -> None:
    straying, other = held(tokenizer, GREEDY), held(tokenizer, GREEDY)
    assert straying.state.grammar is not None
    straying.state.grammar.end_step(strayed=True)
    ahead, ticket = constraint.masks_for([straying, other]), Ticket()
    assert ahead is not None
    ticket.over = True
    constraint.send(ticket, ahead, [straying, other], [0, 3])  # type: ignore[arg-type]
    assert [sorted(ahead.of(item)) for item in (straying, other)] == [[0], [0]]


def test_masks_of_roots_are_begun_before_other_work(tokenizer: GrammarTokenizer, constraint: GpuConstraint) -> None:
    """What that takes is learned, and left to it."""
    filtered, straying = held(tokenizer, FILTERED), held(tokenizer, GREEDY)
    items = [filtered, straying]
    step(constraint, items)
    found = []
    for _ in range(2):
        ahead, ticket = constraint.masks_for(items), Ticket()
        assert ahead is not None
        ahead.launched_at = time.perf_counter() + 60
        constraint.begin_masks(ticket, ahead)  # type: ignore[arg-type]
        found.append([sorted(ahead.of(item)) for item in items])
        ahead.begun_at -= 3600
        constraint.send(ticket, ahead, items, [0, 3])  # type: ignore[arg-type]
        constraint.begin_masks(ticket, ahead)  # type: ignore[arg-type]
        assert [sorted(ahead.of(item)) for item in items] == [[0, 1, 2], []]
        assert ticket.queued is not None
    several = [[[0, 1, 2], []], [[0], []]] if constraint._together.size > 1 else [[[0], []]] * 2
    assert found == several
