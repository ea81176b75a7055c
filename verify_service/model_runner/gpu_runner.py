"""The engine of a GPU: steps are queued on the device and run there while the loop goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from slipstream.generation_types import PositionLogprobs
from slipstream_kernels.device_tree import DeviceTree, DeviceTrees
from slipstream_kernels.models.capture_layers import Bits, boundaries_of
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from slipstream_kernels.models.gpu.batch.plan_kernels import committed_rows
from slipstream_kernels.models.gpu.graph.hidden_state_copies import HiddenStateCopies, HiddenStateCopy, no_copies
from slipstream_kernels.ops.gpu.sampling_table import FLAGS, HAS_PENALTIES, pack_line
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.engine_config import EngineConfig
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.core.prompt_scores import PromptScores
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import DeviceStepResult, Routes, StepHandle, StepTimes, VerifyResult
from verify_service.hidden_states.device_ring import RingSlice
from verify_service.kv_cache.page_table import PageTable
from verify_service.model_runner.captured_states import CapturedStates
from verify_service.model_runner.device_trees import not_on_host, read_tree
from verify_service.model_runner.gpu_batch import GpuBatchBuilder
from verify_service.model_runner.gpu_constraint import TOKENS, GpuConstraint, is_penalised
from verify_service.model_runner.logprobs import chosen_rows, logprob_entries
from verify_service.model_runner.masks_ahead import MasksAhead

if TYPE_CHECKING:
    import torch

    from slipstream_kernels.models.gpu.gpu_model import GpuModel, PassHandle

_NODES = 2
"""Column of a ticket's results at which accepted nodes begin."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuStepHandle(StepHandle):
    """A step on the device. `logprobs`, by a decision's first logit row, are filled in as the first is asked for.

    So are `scores`, by item.
    """

    first_rows: list[int]
    ticket: PassHandle
    items: Sequence[ScheduledRequest]
    boundaries: tuple[int, ...] = ()
    routes: Routes = field(default_factory=dict)
    ahead: MasksAhead | None = None
    """Masks of the step, where a request of it has a grammar."""
    packed: bool = False
    """Whether states reach the host compacted to what could be accepted."""
    decisions: list[VerifyResult] = field(default_factory=list)
    logprobs: dict[int, tuple[PositionLogprobs, ...]] = field(default_factory=dict)
    scores: dict[ScheduledRequest, PromptScores] = field(default_factory=dict)

    def spans(self, item: ScheduledRequest) -> Sequence[RingSlice]:
        return self.routes.get(item, ())

    @property
    def over(self) -> bool:
        return self.ticket.done()

    @property
    def experts_awake(self) -> int:
        return self.ticket.awake


class GpuModelRunner:
    """A ModelRunner over a model that keeps tokens, counts and KV on its device from step to step."""

    lookahead = 1

    def __init__(self, model: GpuModel, config: EngineConfig, page_table: PageTable) -> None:
        _check_limits(model, config)
        self._model = model
        self._page_table = page_table
        self._rows = GpuBatchBuilder(page_table, config.page_size, model.first_scratch_slot)
        self._boundaries: tuple[int, ...] = ()
        self._routes: Callable[[], Routes] = _nowhere
        self._places: dict[RequestState, int] = {}
        self._constraint = GpuConstraint(model, self.begin)

    @property
    def grammar_seconds(self) -> GrammarSeconds:
        return self._constraint.seconds

    @property
    def takes_unresolved_trees(self) -> bool:
        return self._model.takes_device_trees

    def warm_up(self) -> None:
        self._model.warm_up()
        self._rows.build([])
        committed_rows(self._rows.planned_rows([]), np.empty((0, 4), np.int64))  # compiled, as the plan above is

    def pass_costs(self) -> list[tuple[int, int, float]]:
        return self._model.pass_costs()

    def begin(self, state: RequestState) -> None:
        params = state.parameters.sampling
        line = pack_line(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=state.parameters.seed,
            choice=state.request.choice_index,
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            has_bias=bool(params.logit_bias),
            min_position=state.prompt_length + params.min_tokens if params.min_tokens else 0,
            awaits_masks=self._constraint.gives_masks(state),
        )
        penalised = bool(line[FLAGS] & HAS_PENALTIES)
        ends = {*params.stop_token_ids, *self._model.config.eos_token_ids} if params.min_tokens else None
        self._model.set_line(
            state.kv.req_index,
            line,
            prompt_ids=state.tokens[: state.prompt_length] if penalised else None,
            output_ids=state.tokens[state.prompt_length :] if penalised else None,
            bias=params.logit_bias or None,
            end_ids=sorted(ends) if ends else None,
            adapter=state.parameters.adapter_slot,
        )

    def pack_adapter(self, adapter: LoraAdapter, slot: int) -> None:
        self._model.write_adapter(slot, adapter)

    def install_adapter(self, slot: int, packed: None) -> None:
        """The device has it already."""

    def remove_adapter(self, slot: int) -> None:
        self._model.free_adapter(slot)

    @property
    def feature_boundaries(self) -> Sequence[int]:
        return boundaries_of(self._model.config.num_layers) if self._model.limits.boundaries else ()

    def capture(self, boundaries: tuple[int, ...]) -> None:
        self._model.capture(boundaries)
        self._boundaries = boundaries

    def prepare(self) -> bool:
        return self._model.capture_next()

    def direct(self, routes: Callable[[], Routes]) -> None:
        self._routes = routes

    def _settled(self, routes: Callable[[], Routes]) -> Routes:
        """Where states go. Where a capture failed, the one before it is still in force."""
        captured, settled = set(self._boundaries), routes()
        wanted = {span.boundaries for spans in settled.values() for span in spans}
        if all(captured.issuperset(boundaries) for boundaries in wanted):
            return settled
        return {
            item: tuple(span for span in spans if captured.issuperset(span.boundaries))
            for item, spans in settled.items()
        }

    def states(self, launched: GpuStepHandle) -> CapturedStates | None:
        shape = launched.ticket.states_shape if launched.boundaries else None
        if shape is None:
            return None
        ticket = launched.ticket
        accepted = {decision.item: decision.path.nodes for decision in launched.decisions}
        places_of = self._rows.packed_state_rows if launched.packed else self._rows.state_rows
        places = places_of(launched.items, accepted)
        load, copied = partial(_rows_of, ticket), ticket.wait_for_copies
        return CapturedStates(launched.boundaries, load, shape[1], places, launched.routes, copied)

    def launch(self, items: Sequence[ScheduledRequest]) -> GpuStepHandle:
        for line, start, pages in self._page_table.take_changes():
            self._model.set_pages(line, start, pages)
        directed, self._routes = self._routes, _nowhere
        routes = cache(partial(self._settled, directed))
        self._know(items)
        plan, deciding = self._rows.build(items, self._places)
        if scored := [item for item in items if item.scored]:
            plan.scored = self._rows.scored(items, scored)
        packed = plan.has_trees and not len(plan.prefills)
        ahead = self._constraint.masks_for(deciding)
        again = self._constraint.decides_again(ahead)
        if self._boundaries:
            ticket = self._model.launch(plan, partial(self._copies, items, routes, packed=packed), again=again)
        else:
            ticket = self._model.launch(plan, again=again)
        if ahead is not None:
            ahead.launched_at = time.perf_counter()
        self._places = {item.state: place for place, item in enumerate(deciding)}
        first_rows, boundaries = plan.deciding[:, 0].tolist(), self._boundaries
        return GpuStepHandle(deciding, first_rows, ticket, items, boundaries, routes(), ahead=ahead, packed=packed)

    def begin_masks(self, launched: GpuStepHandle) -> None:
        if launched.ahead is not None:
            self._constraint.begin_masks(launched.ticket, launched.ahead)

    def outcome(self, launched: GpuStepHandle) -> DeviceStepResult:
        ticket, ahead = launched.ticket, launched.ahead
        if ahead is not None and any(item.state.grammar is None for item in launched.deciding):
            # Somebody may draft behind what is decided, and by the states that are kept of it.
            self._constraint.send(ticket, ahead, launched.deciding, launched.first_rows, patient=False)
        return DeviceStepResult(ticket.decided, ticket.left, launched.routes)

    def start_after(self, read: torch.cuda.Event) -> None:
        self._model.start_after(read)

    def decide(self, launched: GpuStepHandle) -> list[VerifyResult]:
        ticket, ahead = launched.ticket, launched.ahead
        if ahead is None:
            results = ticket.results()[: len(launched.deciding)]
        else:
            self._constraint.send(ticket, ahead, launched.deciding, launched.first_rows)
            results = self._constraint.results(ticket, ahead, launched.deciding)[: len(launched.deciding)]
        decisions = launched.decisions
        counts = results[:, 0].tolist()
        most = max(counts, default=0)
        nodes = results[:, _NODES : _NODES + most].tolist()
        tokens = results[:, TOKENS : TOKENS + most + 1].tolist()
        for item, first_row, accepted, path, along in zip(
            launched.deciding, launched.first_rows, counts, nodes, tokens, strict=True
        ):
            walk = AcceptedPath(tuple(path[:accepted]), tuple(along[: accepted + 1]))
            decisions.append(VerifyResult(item, walk, first_row))
        if ahead is not None:
            self._constraint.follow(ticket, ahead, decisions)
        return decisions

    def times(self, launched: GpuStepHandle) -> StepTimes | None:
        times = launched.ticket.times
        return None if times is None else StepTimes(*times.seconds())

    def commit(self, state: RequestState, tokens: Sequence[int]) -> None:
        """The device has counted them already, but for what a grammar has the last word on."""
        if state.grammar is not None and is_penalised(state):
            self.begin(state)

    def logprobs(self, launched: GpuStepHandle, decision: VerifyResult, count: int) -> tuple[PositionLogprobs, ...]:
        if decision.item.state.parameters.sampling.logprobs is None:
            return ()
        if not launched.logprobs:
            self._take_logprobs(launched)
        return launched.logprobs[decision.first_row][:count]

    def prompt_scores(self, launched: GpuStepHandle, item: ScheduledRequest) -> PromptScores:
        if not launched.scores:
            values, ranks, ids, logs = self._model.scores(launched.ticket)
            end = 0
            for each in launched.items:
                start, end = end, end + len(each.scored)
                if end > start:
                    top, part = each.state.parameters.sampling.prompt_logprobs or 0, slice(start, end)
                    launched.scores[each] = PromptScores(
                        each.scored.start + 1, values[part], ranks[part], ids[part, :top], logs[part, :top]
                    )
        return launched.scores[item]

    def _know(self, items: Sequence[ScheduledRequest]) -> None:
        """Wait for the trees that the device has alone where the pass cannot take them from there.

        Those behind a step that is not decided cannot be waited for: such items go without.
        """
        late = not_on_host(items)
        if not late:
            return
        able = self._model.takes_device_trees and all(item.decides for item in items if item.count == 1)
        first: DeviceTrees | None = None
        for item in late:
            tree = item.tree
            assert isinstance(tree, DeviceTree)
            first = first or tree.trees
            if not able or tree.trees is not first or item.state not in self._places:
                item.tree = None if item.unresolved else read_tree(tree)

    def _copies(
        self,
        items: Sequence[ScheduledRequest],
        settled: Callable[[], Routes],
        *,
        packed: bool,
    ) -> HiddenStateCopies:
        """What becomes of a pass's states: to the rings of drafters, and to the host what may be committed."""
        routes = settled()
        if not (routes or packed):
            return no_copies()
        planned = self._rows.planned_rows(items)
        rings: dict[tuple[int, tuple[int, ...]], tuple[torch.Tensor, list[int]]] = {}
        for place, item in enumerate(items if routes else ()):
            for span in routes.get(item, ()):
                ring = rings.get((id(span.target), span.boundaries))
                if ring is None:
                    ring = rings[id(span.target), span.boundaries] = span.target, []
                wanted = ring[1]
                wanted += (place, span.count, span.offset, span.row_bytes // 2)
        copies = [
            HiddenStateCopy(target, boundaries, committed_rows(planned, np.array(wanted, np.int64).reshape(-1, 4)))
            for (_, boundaries), (target, wanted) in rings.items()
        ]
        if not packed:
            return HiddenStateCopies(copies)
        everything = np.zeros((len(items), 4), np.int64)
        everything[:, 0], everything[:, 1] = np.arange(len(items)), planned[:, 3]
        return HiddenStateCopies(copies, committed_rows(planned, everything)[:, :3])

    def _take_logprobs(self, launched: GpuStepHandle) -> None:
        """All that any request of a step wants, in one call."""
        wanted = [
            (decision, top)
            for decision in launched.decisions
            if (top := decision.item.state.parameters.sampling.logprobs) is not None
        ]
        rows = [row for decision, _ in wanted for row in chosen_rows(decision, len(decision.path.tokens))]
        tokens = [token for decision, _ in wanted for token in decision.path.tokens]
        chosen = np.array(tokens, dtype=np.int32).clip(min=0)  # nobody asks for the logprob of NO_TOKEN
        most = max(top for _, top in wanted)
        values, ranks, ids, logs = self._model.logprobs(launched.ticket, np.array(rows, dtype=np.int32), chosen, most)
        end = 0
        for decision, top in wanted:
            start, end = end, end + len(decision.path.tokens)
            launched.logprobs[decision.first_row] = logprob_entries(
                chosen[start:end], values[start:end], ranks[start:end], ids[start:end, :top], logs[start:end, :top]
            )


def _nowhere() -> Routes:
    return {}


def _rows_of(ticket: PassHandle) -> Bits:
    """The states of a pass on the host; waits for them. LookupError where their memory has been used again."""
    rows = ticket.states()
    if rows is None:
        raise LookupError("the states of a step are gone")
    return rows


def _check_limits(model: GpuModel, config: EngineConfig) -> None:
    """Raise ValueError for an engine larger than what its model has prepared."""
    limits = model.limits
    context = config.max_context or model.config.max_context
    if context > limits.max_context:
        raise ValueError(f"max_context is {context}, the model is prepared for {limits.max_context}")
    if config.page_size != limits.page_size:
        raise ValueError(f"page_size is {config.page_size}, the model's is {limits.page_size}")
    for field_name in (
        "num_pages",
        "max_running",
        "max_nodes",
        "step_nodes",
        "prefill_chunk",
        "max_adapters",
        "max_adapter_rank",
    ):
        value, limit = getattr(config, field_name), getattr(limits, field_name)
        if value > limit:
            raise ValueError(f"{field_name} is {value}, the model is prepared for {limit}")
