"""The engine of a CPU: a step is one forward pass, computed as it is launched."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream.generation_types import PositionLogprobs
from slipstream_kernels.models.capture_layers import Capture, boundaries_of
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from slipstream_kernels.models.cpu.adapter_table import PackedAdapter
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.ops.logit_mask import masked
from slipstream_kernels.ops.logprobs import logprobs
from slipstream_kernels.ops.sampling import SamplingRows, sample
from verify_service.core.acceptance import AcceptedPath, accept
from verify_service.core.engine_config import EngineConfig
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.core.prompt_scores import PromptScores, next_tokens
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import Routes, StepHandle, VerifyResult
from verify_service.grammar.matcher import Words
from verify_service.grammar.together import Together
from verify_service.kv_cache.page_table import PageTable
from verify_service.model_runner.captured_states import CapturedStates, places_of
from verify_service.model_runner.constrained_path import ConstrainedPath, MaskedRow, decide
from verify_service.model_runner.cpu_batch import CpuBatch, CpuBatchBuilder
from verify_service.model_runner.logprobs import chosen_rows, logprob_entries
from verify_service.model_runner.masks_ahead import MasksAhead
from verify_service.model_runner.sampling_table import SamplingTable

if TYPE_CHECKING:
    import torch

FloatArray = NDArray[np.float32]

_MEASURED_ROWS = (1, 2, 4, 6, 8, 12, 16, 32, 64)
"""A linear layer goes through its weights once for up to six rows."""
_MEASURED_TIMES = 4
_STRIDE = 7919
"""Between the tokens of rows that are measured, a prime."""
_SCORED_ROWS = 128
"""Rows of a prompt whose logits, for logprobs of its tokens, are there at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class CpuStepHandle(StepHandle):
    """A step that is over. `logits` float32 [rows of all decisions, vocab]."""

    decisions: list[VerifyResult]
    logits: FloatArray
    states: CapturedStates | None
    scores: dict[ScheduledRequest, PromptScores]
    experts_awake: int = 0


class CpuModelRunner:
    """A ModelRunner over a model whose passes run in the calling thread and its team."""

    lookahead = 0
    takes_unresolved_trees = False

    def __init__(self, model: CausalLM, config: EngineConfig, page_table: PageTable) -> None:
        self._model = model
        scratch_slots = config.max_running * (config.max_nodes - 1)
        self._cache = model.new_cache(
            num_pages=config.num_pages, page_size=config.page_size, scratch_slots=max(1, scratch_slots)
        )
        model.reserve_adapters(config.max_adapters)
        self._page_size = config.page_size
        self._builder = CpuBatchBuilder(config, page_table.entries, self._cache.scratch_slot(0))
        self._sampling = SamplingTable(config.max_running, model.config.vocab_size, tuple(model.config.eos_token_ids))
        self._boundaries: tuple[int, ...] = ()
        self._capture: Capture | None = None
        """At these boundaries, of as many rows as a pass has had; None where there are none."""
        self.grammar_seconds = GrammarSeconds()
        processors = len(os.sched_getaffinity(0))
        left = processors - model.team.threads
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="masks") if left > 0 else None
        """Where masks are computed beside a pass; a pass that has all processors would take longer by as much."""
        most_masks = config.max_running + min(config.step_nodes, scratch_slots)
        self._mask_room = np.empty((most_masks, -(-model.config.vocab_size // 32)), np.uint32)
        self._together = Together(left if left > 0 else processors)

    def warm_up(self) -> None:
        """Compile the kernels that follow a forward pass, so that no request waits for that."""
        logits = np.zeros((1, self._model.config.vocab_size), dtype=np.float32)
        chosen = sample(logits, SamplingRows.plain([0], temperature=1.0), team=self._model.team)
        logprobs(logits, chosen, 1)
        vocab_words = -(-logits.shape[1] // 32)
        masked(logits, [np.zeros(vocab_words, np.uint32)])
        slot = np.zeros(1, dtype=np.int32)
        self._cache.copy_slots(slot, slot)

    def pass_costs(self) -> list[tuple[int, int, float]]:
        """Of one request and ever more rows, the best of a few in turns; overwrites the first pages' KV.

        Here all rows cost the same, whosoever they are. They have tokens of their own, as rows alike would have the
        same experts of a model that has any. To be called before any request runs.
        """
        most = min(self._cache.num_pages * self._page_size, self._model.config.max_context)
        batches: dict[int, RowBatch] = {}
        for rows in filter(lambda rows: rows <= most, _MEASURED_ROWS):
            tokens = [row * _STRIDE % self._model.config.vocab_size for row in range(rows)]
            batches[rows] = RowBatch.chunk(tokens, 0, range(-(-rows // self._page_size)), self._page_size)
        rounds = [[self._timed(batch) for batch in batches.values()] for _ in range(_MEASURED_TIMES)]
        costs = [(1, rows, min(times)) for rows, times in zip(batches, zip(*rounds, strict=True), strict=True)]
        return costs if len(costs) > 1 else [(1, 1, 1e-3), (1, 2, 1.1e-3)]

    def begin(self, state: RequestState) -> None:
        self._sampling.begin(state)

    def pack_adapter(self, adapter: LoraAdapter, slot: int) -> PackedAdapter:
        return self._model.pack_adapter(adapter, slot)

    def install_adapter(self, slot: int, packed: PackedAdapter) -> None:
        self._model.install_adapter(slot, packed)

    def remove_adapter(self, slot: int) -> None:
        self._model.remove_adapter(slot)

    @property
    def feature_boundaries(self) -> Sequence[int]:
        return boundaries_of(self._model.config.num_layers)

    def capture(self, boundaries: tuple[int, ...]) -> None:
        config = self._model.config
        layers, width = config.num_layers, config.hidden_size
        self._capture = Capture.of(boundaries, 0, num_layers=layers, hidden_size=width) if boundaries else None
        self._boundaries = boundaries

    def prepare(self) -> bool:
        return False

    def direct(self, routes: Callable[[], Routes]) -> None:
        assert not routes(), "there is no device to put states on"

    def states(self, launched: CpuStepHandle) -> CapturedStates | None:
        return launched.states

    def begin_masks(self, launched: CpuStepHandle) -> None:
        """They were, in the pass."""

    def outcome(self, launched: CpuStepHandle) -> None:
        """No device has anything."""

    def start_after(self, read: torch.cuda.Event) -> None:
        """Nothing is read there."""

    def launch(self, items: Sequence[ScheduledRequest]) -> CpuStepHandle:
        """Compute all rows, sample every deciding one, and walk each tree."""
        rows = self._builder.build(items)
        capture = self._capture_of(len(rows.batch))
        ahead = MasksAhead(rows.deciding, self._mask_room, self._together)
        logits = self._forward(rows, capture, ahead)
        awake = self._model.experts_awake
        scores = self._score(items)
        if not rows.deciding:
            return CpuStepHandle((), [], logits, self._states(capture, items, []), scores, awake)
        gathered = self._sampling.gather(rows.deciding, rows.lines, rows.positions)
        masked_rows = _masked_rows(rows.deciding, ahead)
        sampled = self._sample(logits, gathered, masked_rows)
        decisions = self._decide(rows, sampled)
        if any(item.state.grammar is not None for item in rows.deciding):
            self._constrain(decisions, sampled, logits, gathered, ahead, masked_rows)
        self._compact(decisions, rows.node_slots)
        states = self._states(capture, items, decisions)
        return CpuStepHandle(rows.deciding, decisions, logits, states, scores, awake)

    def times(self, launched: CpuStepHandle) -> None:
        return None

    def decide(self, launched: CpuStepHandle) -> list[VerifyResult]:
        return launched.decisions

    def commit(self, state: RequestState, tokens: Sequence[int]) -> None:
        self._sampling.commit(state, tokens)

    def logprobs(self, launched: CpuStepHandle, decision: VerifyResult, count: int) -> tuple[PositionLogprobs, ...]:
        top = decision.item.state.parameters.sampling.logprobs
        if top is None:
            return ()
        chosen = np.array(decision.path.tokens[:count], dtype=np.int32)
        rows = launched.logits[chosen_rows(decision, count)]
        return logprob_entries(chosen, *logprobs(rows, chosen, top))

    def prompt_scores(self, launched: CpuStepHandle, item: ScheduledRequest) -> PromptScores:
        return launched.scores[item]

    def _score(self, items: Sequence[ScheduledRequest]) -> dict[ScheduledRequest, PromptScores]:
        """What the rows of the pass that has just run tell of their prompts' tokens."""
        wanted = [item for item in items if item.scored]
        places = places_of(items, {}) if wanted else {}
        return {item: self._scores(item, places[item][0] - item.first) for item in wanted}

    def _scores(self, item: ScheduledRequest, offset: int) -> PromptScores:
        """Of an item's `scored` positions; the row of each is `offset` from it."""
        chosen, top = next_tokens(item.state.tokens, item.scored), item.state.parameters.sampling.prompt_logprobs or 0
        rows = np.arange(item.scored.start + offset, item.scored.stop + offset, dtype=np.int32)
        parts = [
            logprobs(self._model.last_logits(rows[at : at + _SCORED_ROWS]), chosen[at : at + _SCORED_ROWS], top)
            for at in range(0, len(rows), _SCORED_ROWS)
        ]
        return PromptScores(item.scored.start + 1, *map(np.concatenate, zip(*parts, strict=True)))

    def _timed(self, batch: RowBatch) -> float:
        begun = time.perf_counter()
        self._model.forward(self._cache, batch)
        return time.perf_counter() - begun

    def _capture_of(self, rows: int) -> Capture | None:
        """Where a pass of so many rows leaves states, over those of the pass before."""
        if self._capture is not None and len(self._capture.rows) < rows:
            self._capture = self._capture.with_rows(max(16, 1 << (rows - 1).bit_length()))
        return self._capture

    def _states(
        self, capture: Capture | None, items: Sequence[ScheduledRequest], decisions: Sequence[VerifyResult]
    ) -> CapturedStates | None:
        if capture is None:
            return None
        places = places_of(items, {decision.item: decision.path.nodes for decision in decisions})
        return CapturedStates(self._boundaries, lambda: capture.rows, capture.rows.shape[1], places)

    def _decide(self, rows: CpuBatch, sampled: list[int]) -> list[VerifyResult]:
        decisions: list[VerifyResult] = []
        first = 0
        for item in rows.deciding:
            end = first + item.num_rows
            decided = (
                AcceptedPath((), (sampled[first],)) if item.tree is None else accept(item.tree, sampled[first:end])
            )
            decisions.append(VerifyResult(item, decided, first))
            first = end
        return decisions

    def _forward(self, rows: CpuBatch, capture: Capture | None, ahead: MasksAhead) -> FloatArray:
        """Run the pass; meanwhile another thread computes masks. Compute those that are needed and not there yet."""
        over = threading.Event()
        computing = self._aside.submit(ahead.compute, over.is_set) if ahead and self._aside is not None else None
        try:
            logits = self._model.forward(self._cache, rows.batch, capture)
        finally:
            began = time.perf_counter()
            over.set()
            if computing is not None:
                computing.result()
        ahead.finish()
        self.grammar_seconds.masks += time.perf_counter() - began
        return logits

    def _sample(self, logits: FloatArray, gathered: SamplingRows, masked_rows: Mapping[int, Words]) -> list[int]:
        """Sample every row, some of them under masks; logits are left as they are."""
        if not masked_rows:
            return list(map(int, sample(logits, gathered, team=self._model.team).tolist()))
        began = time.perf_counter()
        numbers = np.array([*masked_rows], dtype=np.int32)
        raw = logits[numbers]
        logits[numbers] = masked(raw.copy(), [*masked_rows.values()])
        self.grammar_seconds.masks += time.perf_counter() - began
        sampled = sample(logits, gathered, team=self._model.team)
        logits[numbers] = raw
        return list(map(int, sampled.tolist()))

    def _constrain(
        self,
        decisions: list[VerifyResult],
        sampled: list[int],
        logits: FloatArray,
        gathered: SamplingRows,
        ahead: MasksAhead,
        masked_rows: Container[int],
    ) -> None:
        """Decide anew what grammars have a say in."""
        held: list[tuple[int, ConstrainedPath]] = []
        for place, (item, _, first, _) in enumerate(decisions):
            if (grammar := item.state.grammar) is not None:
                by_row = dict(enumerate(sampled[first : first + item.num_rows]))
                under_mask = {row for row in by_row if first + row in masked_rows}
                path = ConstrainedPath(item, grammar, first, by_row, ahead.of(item), under_mask)
                held.append((place, path))

        def sample_masked(rows: Sequence[MaskedRow]) -> list[int]:
            chosen = np.array([each.row for each in rows], dtype=np.int32)
            left = masked(logits[chosen], [each.words for each in rows])
            return [int(token) for token in sample(left, gathered.take(chosen), team=self._model.team)]

        decided = decide([path for _, path in held], sample_masked, self.grammar_seconds)
        for (place, _), decision in zip(held, decided, strict=True):
            decisions[place] = decision

    def _compact(self, decisions: Sequence[VerifyResult], node_slots: Sequence[int]) -> None:
        """Copy the KV of accepted nodes from scratch slots to the page slots of their positions."""
        sources: list[int] = []
        targets: list[int] = []
        size = self._page_size
        for decision, first_slot in zip(decisions, node_slots, strict=True):
            if decision.path.nodes:
                state, base = decision.item.state, decision.item.base
                sources.extend(first_slot + node for node in decision.path.nodes)
                targets.extend(
                    state.kv.pages[position // size] * size + position % size
                    for position in range(base, base + len(decision.path.nodes))
                )
        if sources:
            self._cache.copy_slots(np.array(sources, dtype=np.int32), np.array(targets, dtype=np.int32))


def _masked_rows(deciding: Sequence[ScheduledRequest], ahead: MasksAhead) -> dict[int, Words]:
    """Return masks by row of a pass's logits, of rows whose tokens the masks leave to be sampled."""
    found: dict[int, Words] = {}
    first = 0
    for item in deciding:
        for row, (words, only) in ahead.of(item).items():
            if only is None:
                found[first + row] = words
        first += item.num_rows
    return found
