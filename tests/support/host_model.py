"""A model with a device's interface whose device is the CPU engine's arithmetic: same bits, but steps run late.

What is launched runs, in order, when somebody asks for a result: as late as a device could.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.forward.masked_sampling import MaskedRows
from slipstream_kernels.ops.gpu import sampling_table as table
from slipstream_kernels.ops.logit_mask import masked
from slipstream_kernels.ops.logprobs import logprobs
from slipstream_kernels.ops.sampling import SamplingRows, sample
from verify_service.core.engine_config import EngineConfig

IntArray = NDArray[np.int32]
STALE = 7_000_000


@dataclass(slots=True)
class Line:
    """What the device holds for one running request."""

    params: IntArray
    prompt: Sequence[int]
    output: list[int]
    bias: Sequence[tuple[int, float]]
    ends: Sequence[int]
    adapter: int = -1

    def number(self, field: int) -> float:
        return float(self.params.view(np.float32)[field])


@dataclass(frozen=True, slots=True)
class SampledRows:
    """A step's plan, its rows' ids and, by row, those of drafted ancestors; the tokens of rows that have logits."""

    plan: PassPlan
    ids: IntArray
    paths: list[list[int]]
    tokens: IntArray


class HostTicket:
    """A step that was launched."""

    def __init__(self, owner: HostModel, keeps_logits: bool) -> None:
        self._owner = owner
        self.keeps_logits = keeps_logits
        self.logits: NDArray[np.float32] | None = None
        self.rows: IntArray | None = None
        self.scores: tuple[Any, Any, Any, Any] | None = None
        self.awake = 0
        self.times = None  # a host has no clock of its own
        self.sampled: SampledRows | None = None
        self.first: IntArray | None = None
        self.again = False
        """Whether the step is to be decided again."""
        self.error: Exception | None = None

    def done(self) -> bool:
        """As late as can be."""
        return self.rows is not None or self.error is not None

    def wait(self) -> None:
        self._owner.run_until(self)

    def unmasked(self) -> IntArray | None:
        return self.first

    def results(self) -> IntArray:
        self._owner.run_until(self)
        if self.error is not None:
            raise self.error
        assert self.rows is not None
        return self.rows


class HostModel:
    """GpuModel's interface over a CausalLM. `journal` lists what was asked for, in order."""

    mode = "exact"
    decides_again = True
    takes_device_trees = False

    def __init__(self, model: CausalLM, limits: EngineConfig) -> None:
        self.config = model.config
        self.limits = replace(limits, max_context=limits.max_context or model.config.max_context)
        self._model = model
        model.reserve_adapters(limits.max_adapters)
        scratch = max(1, min(limits.step_nodes, limits.max_running * (limits.max_nodes - 1)))
        self._cache = model.new_cache(num_pages=limits.num_pages, page_size=limits.page_size, scratch_slots=scratch)
        width = -(-model.config.max_context // limits.page_size)
        self._pages = np.full((limits.max_running, width), STALE, dtype=np.int32)
        self._last = np.full(limits.max_running, STALE, dtype=np.int32)
        self._lines: dict[int, Line] = {}
        self._results = np.zeros((0, 130), dtype=np.int32)
        self._stream: list[tuple[HostTicket | None, Callable[[], None]]] = []
        self.journal: list[str] = []
        self.mask_rows = np.zeros((limits.max_running + scratch, -(-model.config.vocab_size // 32)), np.uint32)

    @property
    def first_scratch_slot(self) -> int:
        return self._cache.scratch_slot(0)

    def warm_up(self) -> None:
        self.journal.append("warm up")

    def pass_costs(self) -> list[tuple[int, int, float]]:
        return [(1, 1, 1e-3), (1, 64, 1.2e-3)]

    def kv_bytes_per_token(self) -> int:
        return self._model.kv_bytes_per_token()

    def set_line(
        self,
        line: int,
        packed_params: IntArray,
        *,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] | None = None,
        bias: Sequence[tuple[int, float]] | None = None,
        end_ids: Sequence[int] | None = None,
        adapter: int = -1,
    ) -> None:
        flags = packed_params[table.FLAGS]
        assert (prompt_ids is not None) == (output_ids is not None) == bool(flags & table.HAS_PENALTIES)
        assert (bias is not None) == bool(flags & table.HAS_BIAS)
        assert (end_ids is not None) == bool(flags & table.HAS_MIN_TOKENS)
        new = Line(
            packed_params.copy(), tuple(prompt_ids or ()), list(output_ids or ()), bias or (), end_ids or (), adapter
        )
        self._stream.append((None, lambda: self._lines.__setitem__(line, new)))

    def write_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        packed = self._model.pack_adapter(adapter, slot)
        self._stream.append((None, lambda: self._model.install_adapter(slot, packed)))

    def free_adapter(self, slot: int) -> None:
        self._stream.append((None, lambda: self._model.remove_adapter(slot)))

    def set_pages(self, line: int, start: int, pages: IntArray) -> None:
        copied = np.array(pages)

        def write() -> None:
            self._pages[line, start : start + len(copied)] = copied

        self._stream.append((None, write))

    def launch(self, plan: PassPlan, *, again: bool = False) -> HostTicket:
        check_plan(plan)
        assert not any(of is not None and of.again for of, _ in self._stream), "a step is not decided again yet"
        self.journal.append("launch")
        copied = deepcopy(plan)
        ticket = HostTicket(self, plan.keep_logits)
        ticket.again = again
        self._stream.append((ticket, lambda: self._run(copied, ticket)))
        return ticket

    def decide_again(self, ticket: HostTicket, rows: IntArray) -> None:
        assert ticket.again and [of for of, _ in self._stream if of is not None][-1:] in ([], [ticket])
        ticket.again = False
        if len(rows):
            self._stream.append((ticket, lambda: self._decide_again(ticket, rows)))

    def run_until(self, ticket: HostTicket) -> None:
        """Work off the stream up to a step, and what decides it again."""
        self.journal.append("results")
        while not ticket.done() or any(of is ticket for of, _ in self._stream):
            of, work = self._stream.pop(0)
            try:
                work()
            except RuntimeError as error:
                assert of is not None
                of.error = error

    def logprobs(
        self, ticket: HostTicket, logit_indices: IntArray, chosen: IntArray, top: int
    ) -> tuple[Any, Any, Any, Any]:
        assert ticket.logits is not None and ticket.keeps_logits
        return logprobs(np.ascontiguousarray(ticket.logits[logit_indices]), chosen, top)

    def sample_masked(self, ticket: HostTicket, wanted: MaskedRows) -> list[int]:
        for _, work in self._stream:
            work()
        self._stream.clear()
        return self._sampled_under(ticket, wanted.rows, wanted.masks).tolist()

    def _sampled_under(self, ticket: HostTicket, rows: IntArray, masks: NDArray[np.uint32]) -> IntArray:
        assert ticket.logits is not None and ticket.sampled is not None
        plan, ids, paths = ticket.sampled.plan, ticket.sampled.ids, ticket.sampled.paths
        return sample(masked(ticket.logits[rows], list(masks)), self._sampling(plan, ids, paths, rows))

    def _decide_again(self, ticket: HostTicket, rows: IntArray) -> None:
        assert ticket.sampled is not None and ticket.rows is not None
        plan, ids = ticket.sampled.plan, ticket.sampled.ids
        kept, sampled = rows >= 0, ticket.sampled.tokens.copy()
        sampled[rows[kept]] = self._sampled_under(ticket, rows[kept], self.mask_rows[: len(rows)][kept])
        ticket.first, ticket.rows = ticket.rows, ticket.rows.copy()
        for item, result in zip(plan.deciding.tolist(), ticket.rows, strict=True):
            if np.isin(rows, range(item[0], item[0] + item[1])).any():
                result[:] = STALE
                self._walk(plan, ids, sampled, item, result)
        self._results = ticket.rows

    def scores(self, ticket: HostTicket) -> tuple[Any, Any, Any, Any]:
        assert ticket.scores is not None
        return ticket.scores

    def _run(self, plan: PassPlan, ticket: HostTicket) -> None:
        self._settle(plan)
        ids = np.where(plan.token_ids < 0, self._last[plan.lines], plan.token_ids).astype(np.int32).clip(min=0)
        paths = [self._path(plan, row) for row in range(len(ids))]
        width = max(1, *(len(path) for path in paths))
        ancestors = np.zeros((len(ids), width), dtype=np.int32)
        for row, path in enumerate(paths):
            ancestors[row, : len(path)] = plan.write_slots[path]
        batch = RowBatch(
            token_ids=ids,
            positions=plan.positions,
            write_slots=plan.write_slots,
            page_lines=plan.lines,
            prefix_lengths=plan.prefix_lengths,
            ancestor_slots=ancestors,
            num_ancestors=np.array([len(path) for path in paths], dtype=np.int32),
            page_table=self._pages,
            logit_rows=plan.logit_rows,
            adapters=np.array([self._lines[line].adapter for line in plan.lines.tolist()], dtype=np.int32),
        )
        ticket.logits = np.array(self._model.forward(self._cache, batch))
        ticket.awake = self._model.experts_awake
        if len(plan.scored):
            rows, tokens, tops = map(np.ascontiguousarray, plan.scored.T)
            ticket.scores = logprobs(self._model.last_logits(rows), tokens, int(tops.max()))
        every = np.arange(len(plan.logit_rows))
        sampled = sample(ticket.logits, self._sampling(plan, ids, paths, every)) if len(every) else ids[:0]
        awaits = [bool(self._lines[line].params[table.FLAGS] & table.AWAITS_MASKS) for line in plan.lines.tolist()]
        sampled = np.where(np.array(awaits, bool)[plan.logit_rows], -1, sampled).astype(np.int32)
        ticket.sampled = SampledRows(plan, ids, paths, sampled)
        ticket.rows = np.full((len(plan.deciding), 130), STALE, dtype=np.int32)
        for item, result in zip(plan.deciding.tolist(), ticket.rows, strict=True):
            self._walk(plan, ids, sampled, item, result)
        self._results = ticket.rows

    def _settle(self, plan: PassPlan) -> None:
        """Roots stand where the pass before has left their requests."""
        size = self.limits.page_size
        for item, before, start, root, rows, _, nodes, _ in plan.choices.tolist():
            assert (rows, nodes) == (1, 0), "nothing drafts on this device"
            position = start + int(self._results[before][0])
            page = int(self._pages[plan.lines[root], position // size])
            plan.positions[root], plan.prefix_lengths[root] = position, position + 1
            plan.write_slots[root] = page * size + position % size
            plan.deciding[item, 3] = position + 1

    def _path(self, plan: PassPlan, row: int) -> list[int]:
        """Rows of a node's drafted ancestors, itself last."""
        path: list[int] = []
        while plan.parents[row] != -2:
            path.insert(0, row)
            if plan.parents[row] < 0:
                break
            row = int(plan.root_rows[row] + 1 + plan.parents[row])
        return path

    def _walk(self, plan: PassPlan, ids: IntArray, sampled: IntArray, item: list[int], result: IntArray) -> None:
        first, count, line, base = item
        rows = plan.logit_rows[first : first + count]
        at, nodes, tokens = -1, [], [int(sampled[first])]
        for node, row in enumerate(rows[1:].tolist()):
            if plan.parents[row] == at and ids[row] == tokens[-1]:
                at = node
                nodes.append(node)
                tokens.append(int(sampled[first + 1 + node]))
        result[:2] = len(nodes), line
        result[2 : 2 + len(nodes)] = nodes
        result[66 : 66 + len(tokens)] = tokens
        self._last[line] = tokens[-1]
        if line in self._lines:
            self._lines[line].output.extend(token for token in tokens if token >= 0)
        size = self.limits.page_size
        targets = [
            int(self._pages[line, position // size]) * size + position % size
            for position in range(base, base + len(nodes))
        ]
        sources = plan.write_slots[rows[1:][nodes]] if nodes else []
        self._cache.copy_slots(np.array(sources, dtype=np.int32), np.array(targets, dtype=np.int32))

    def _sampling(
        self, plan: PassPlan, ids: IntArray, paths: list[list[int]], places: NDArray[np.integer]
    ) -> SamplingRows:
        """Of rows of logits at these places."""
        rows = plan.logit_rows[places].tolist()
        drafted = [[int(ids[above]) for above in paths[row]] for row in rows]
        return self._rows([int(plan.lines[row]) for row in rows], plan.positions[rows], drafted)

    def _rows(self, numbers_of_lines: list[int], own_positions: IntArray, paths: list[list[int]]) -> SamplingRows:
        """Rows of these lines at these positions, with the tokens that lead to each."""
        lines = [self._lines[number] for number in numbers_of_lines]
        penalised = [bool(line.params[table.FLAGS] & table.HAS_PENALTIES) for line in lines]
        seen = np.zeros((len(lines), self.config.vocab_size), dtype=np.uint8)
        counts = np.zeros((len(lines), self.config.vocab_size), dtype=np.int32)
        for at, line in enumerate(lines):
            seen[at, list(line.prompt)] = 1
            np.add.at(counts[at], np.array(line.output, dtype=np.int64), 1)
        words = [line.params.view(np.uint32) for line in lines]
        drafted = [path if on else [] for path, on in zip(paths, penalised, strict=True)]
        positions = own_positions + 1
        masks = [
            list(line.ends) if position < line.params[table.MIN_POSITION] else []
            for line, position in zip(lines, positions.tolist(), strict=True)
        ]

        def numbers(field: int) -> NDArray[np.float32]:
            return np.array([line.number(field) for line in lines], dtype=np.float32)

        return SamplingRows(
            position=positions.astype(np.int32),
            temperature=numbers(table.TEMPERATURE),
            top_k=np.array([line.params[table.TOP_K] for line in lines], dtype=np.int32),
            top_p=numbers(table.TOP_P),
            min_p=numbers(table.MIN_P),
            seed=np.array([int(w[table.SEED_LOW]) | int(w[table.SEED_HIGH]) << 32 for w in words], dtype=np.uint64),
            choice=np.array([w[table.CHOICE] for w in words], dtype=np.uint32),
            repetition=numbers(table.REPETITION),
            presence=numbers(table.PRESENCE),
            frequency=numbers(table.FREQUENCY),
            history=np.array([at if on else -1 for at, on in enumerate(penalised)], dtype=np.int32),
            prompt_seen=seen,
            output_counts=counts,
            path_offsets=offsets(drafted),
            path_tokens=np.array([*chain(*drafted)], dtype=np.int32),
            bias_offsets=offsets([line.bias for line in lines]),
            bias_ids=np.array([token for line in lines for token, _ in line.bias], dtype=np.int32),
            bias_values=np.array([value for line in lines for _, value in line.bias], dtype=np.float32),
            mask_offsets=offsets(masks),
            mask_ids=np.array([*chain(*masks)], dtype=np.int32),
        )


def offsets(runs: Sequence[Sequence[Any]]) -> IntArray:
    return np.cumsum([0, *(len(run) for run in runs)], dtype=np.int32)


def check_plan(plan: PassPlan) -> None:
    """Every row belongs to exactly one segment; arrays are what a device takes."""
    for field in fields(plan):
        value = getattr(plan, field.name)
        if isinstance(value, np.ndarray):
            assert value.dtype == np.int32 and value.flags.c_contiguous, field.name
    spans = [*plan.decodes, *plan.prefills]
    covered = [row for first, count, _, _ in spans for row in range(first, first + count)]
    assert covered == list(range(len(plan.token_ids)))
    assert len(set(plan.write_slots.tolist())) == len(covered)
    for first, count, line, base in plan.decodes.tolist():
        assert (plan.prefix_lengths[first : first + count] == base).all()
        assert (plan.lines[first : first + count] == line).all()
    for first, count, line, position in plan.prefills.tolist():
        assert plan.positions[first : first + count].tolist() == list(range(position, position + count))
        assert (plan.lines[first : first + count] == line).all()
    for first, count, line, base in plan.deciding.tolist():
        root = plan.logit_rows[first]
        assert plan.logit_rows[first : first + count].tolist() == list(range(root, root + count))
        assert (plan.lines[root], plan.positions[root] + 1) == (line, base)
    assert plan.has_trees == bool((plan.parents != -2).any() or len(plan.choices))
