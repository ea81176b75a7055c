"""A causal language model on a GPU: passes are launched one after the other and answer later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compile_ahead import compiling_ahead
from slipstream_kernels.models.capture_layers import boundaries_of
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from slipstream_kernels.models.checkpoint.served_config import served_config
from slipstream_kernels.models.gpu.batch.buckets import Bucket, bucket_of, buckets_of
from slipstream_kernels.models.gpu.batch.device_plan import PlanLayouts
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.outcome_plan import may_select
from slipstream_kernels.models.gpu.batch.pass_plan import Int32, PassPlan
from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.models.gpu.forward.adapters import GpuAdapters
from slipstream_kernels.models.gpu.forward.flashinfer_attention import FLASHINFER, TRITON
from slipstream_kernels.models.gpu.forward.gpu_forward import GpuForward
from slipstream_kernels.models.gpu.forward.kv_store import KVStore
from slipstream_kernels.models.gpu.forward.masked_sampling import MaskedRows, Words
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops, ops_of_mode
from slipstream_kernels.models.gpu.forward.plain_attention import PlainAttention
from slipstream_kernels.models.gpu.forward.position_tables import PositionTables
from slipstream_kernels.models.gpu.forward.row_scores import RowScorer, logprobs_of, meet_logprobs, read_scores
from slipstream_kernels.models.gpu.forward.weight_reader import WeightReader
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from slipstream_kernels.models.gpu.graph.graph_runner import GraphRunner
from slipstream_kernels.models.gpu.graph.hidden_state_copies import CopyPlan, HiddenStateSender, no_copies
from slipstream_kernels.models.gpu.graph.pass_buffers import BufferPool
from slipstream_kernels.models.gpu.graph.pass_handle import PassHandle
from slipstream_kernels.models.gpu.graph.pinned_buffers import PinnedBuffer, PinnedBuffers
from slipstream_kernels.models.gpu.graph.stream_context import StreamContext
from slipstream_kernels.models.gpu.masked_decision import MaskedDecision
from slipstream_kernels.models.gpu.memory_plan import GpuMemoryPlan, kv_bytes_per_token, resolved_limits
from slipstream_kernels.models.gpu.outcome_selector import OutcomeSelector
from slipstream_kernels.models.gpu.pass_results import PassResults
from slipstream_kernels.models.gpu.profile_passes import measure_pass_costs
from slipstream_kernels.models.gpu.ranks.rank_group import RankGroup
from slipstream_kernels.models.gpu.ranks.shard import shard_of
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.stage_times import StageTimes

__all__ = ["GpuLimits", "GpuModel", "MaskedRows", "PassHandle", "PassPlan"]

Float32 = npt.NDArray[np.float32]


class GpuModel:
    """A decoder of the Llama family with its KV cache, page table, sampling parameters and last tokens.

    Used by one thread. Everything happens on one stream in the order of the calls, so that a pass reads what those
    launched before it leave behind. Only `PassHandle.results`, `logprobs`, `warm_up` and `pass_costs` wait for it.
    """

    takes_device_trees = True
    """Whether a plan may have trees that are drafted on the model's device."""
    decides_again = True
    """Whether there is `decide_again`."""

    def __init__(
        self,
        weights: GpuWeights,
        limits: GpuLimits,
        memory: GpuMemoryPlan,
        *,
        mode: str,
        ops: Ops | None,
        group: RankGroup | None,
        attention: str = TRITON,
    ) -> None:
        """Use `load` or `from_weights`. `limits` are resolved."""
        self.config = weights.shard.config
        self.limits = limits
        self.memory = memory
        self.mode = mode
        self.attention = attention
        self._weights = weights
        self._device = device = weights.embedding.device
        self._stream = self._side_stream = None
        if device.type == "cuda":
            self._stream, self._side_stream = torch.cuda.Stream(device), torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))  # where the weights come from
            self._on_own_stream = StreamContext(self._stream)
        self._buckets = buckets_of(weights.shard, limits, plain=attention == FLASHINFER)
        self._layout = PlanLayouts(limits, weights.shard).of
        with self._on_stream():
            self._tables = RequestTables(limits, self.config.vocab_size, device)
            self._pool = BufferPool(weights.shard, limits, device, library=mode == "fast")
            vocab_size = self.config.vocab_size
            kept_logits = torch.empty(limits.max_decode_rows, vocab_size, dtype=torch.float32, device=device)
            self.kv = KVStore.empty(weights.shard, limits, device)
            self._adapters = GpuAdapters(weights.shard, limits, device) if limits.max_adapters else None
            positions = PositionTables.of(self.config, limits.max_context, device)
            words = max(self._layout(bucket).max_words for bucket in self._buckets.all())
            self._plan = torch.zeros(words, dtype=torch.int32, device=device)
            self._ops = ops = ops or ops_of_mode(mode, device, self._pool.gate_up)
            self._plain = None
            if attention == FLASHINFER:
                self._plain = PlainAttention(weights.shard, limits, self._tables.page_table)
            self._forward = GpuForward(
                weights, self.kv, self._tables, self._pool, positions, ops, group, self._plain, self._adapters
            )
            self._scorer = RowScorer(self._forward, weights.shard, limits, ops, device)
            self._sender = HiddenStateSender(limits, self.config.hidden_size, device, ops.copy_states)
            self._masked = MaskedDecision(self._forward, self._pool, self._layout, self._plan, limits, vocab_size)
        self._results = PassResults(self._pool, kept_logits, self._sender, self._masked)
        self._host = PinnedBuffers(words, limits.max_running, RESULT_WIDTH, device, self._pool.awake)
        meeting = max(2, self.config.layers_of_all_kinds)
        self._graphs = GraphRunner[Bucket](self._run, lambda bucket: self._run(bucket, layers=meeting), timed=device)
        self._outcome_selector = OutcomeSelector(self._forward, self._layout, self._plan)
        self._recent: deque[PassHandle] = deque(maxlen=2)
        self._readers: list[torch.cuda.Event] = []
        self._boundaries: tuple[int, ...] = ()
        self._kept_boundaries: tuple[int, ...] = ()  # those that graphs and memory are there for
        self._pass_costs: list[tuple[int, int, float]] = []

    @classmethod
    def load(
        cls,
        path: Path,
        limits: GpuLimits,
        *,
        device: str = "cuda",
        mode: str = "exact",
        ops: Ops | None = None,
        capture: bool = True,
        attention: str = TRITON,
        group: RankGroup | None = None,
        progress: bool = True,
        times: StageTimes | None = None,
    ) -> Self:
        """Read a Hugging Face folder. `ops` overrules those of `mode`, exact or fast.

        `attention` of passes without trees: by the ops of `triton`, or in fast mode by the library `flashinfer`.
        Graphs are captured if `capture` is set and the device has them. `group` shares the model among ranks, each of
        which makes the same calls. `times` is told of the stages, the one under way first. Raises CheckpointError,
        OutOfDeviceMemoryError, FlashInferError, or ValueError for limits that do not fit the model.
        """
        config, on = served_config(path, fp8_activations=limits.fp8_activations), torch.device(device)
        shard = shard_of(config, group)
        resolved, memory = resolved_limits(shard, limits, on, mode, attention, group, held=0, capture=capture)
        with WeightReader(path, config, device, rank=shard.rank, size=shard.size, progress=progress) as reader:
            model = cls(reader.weights, resolved, memory, mode=mode, attention=attention, ops=ops, group=group)
            model._start(reader.wait, times or StageTimes(), capture=capture, progress=progress)
        return model

    @classmethod
    def from_weights(
        cls,
        weights: GpuWeights,
        limits: GpuLimits,
        *,
        mode: str = "exact",
        ops: Ops | None = None,
        capture: bool = True,
        attention: str = TRITON,
        group: RankGroup | None = None,
        progress: bool = False,
    ) -> Self:
        """A model of weights that are on their device already; else as `load`."""
        shard, held, on = weights.shard, weights.nbytes, weights.embedding.device
        resolved, memory = resolved_limits(shard, limits, on, mode, attention, group, held=held, capture=capture)
        model = cls(weights, resolved, memory, mode=mode, attention=attention, ops=ops, group=group)
        model._start(lambda: None, StageTimes(), capture=capture, progress=progress)
        return model

    def _start(self, await_weights: Callable[[], None], times: StageTimes, *, capture: bool, progress: bool) -> None:
        """Compile the kernels while weights are read, then capture the graphs."""
        times.end("buffers")
        captures, buckets = capture and self._stream is not None, self._buckets.all()
        if captures:
            with self._on_stream(), compiling_ahead():
                self._meet(buckets)
            times.end("kernels")
        await_weights()
        times.end("weights")
        if captures:
            with self._on_stream():
                passes = [bucket._replace(boundaries=self.limits.expected_boundaries) for bucket in buckets]
                self._graphs.capture(passes, self._prepare, progress=progress)
                self._outcome_selector.capture(buckets, self._prepare, progress=progress)
            times.end("graphs")

    def _meet(self, buckets: Sequence[Bucket]) -> None:
        """Launch each kernel there is once."""
        self._graphs.meet(buckets)
        self._outcome_selector.meet(buckets)
        self._masked.meet(buckets[0])
        self._sender.meet()
        meet_logprobs(self._ops, self._pool.of(buckets[0]).logits)

    @property
    def first_scratch_slot(self) -> int:
        """KV slot of the first drafted node of a pass; the others follow."""
        return self.limits.num_pages * self.limits.page_size

    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one slot, on this rank."""
        return kv_bytes_per_token(self._weights.shard, self.limits.kv)

    def set_line(
        self,
        line: int,
        packed_params: Int32,
        *,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] | None = None,
        bias: Sequence[tuple[int, float]] | None = None,
        end_ids: Sequence[int] | None = None,
        adapter: int = -1,
    ) -> None:
        """A line's sampling parameters, int32 [16] of `pack_line`, and its adapter's slot, from the next pass on.

        For lines with penalties, what its request has seen: ids of the prompt and of the output so far, which later
        passes add to. For lines with a bias, (id, value) pairs. For lines with a least length, the ids that may not
        come before it.
        """
        with self._on_stream():
            self._tables.set_line(
                line, packed_params, prompt_ids=prompt_ids, output_ids=output_ids, bias=bias, end_ids=end_ids
            )
            self._tables.set_adapter(line, adapter)

    def write_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        """See `GpuAdapters.write`; for any thread."""
        assert self._adapters is not None, "there is no slot"
        self._adapters.write(slot, adapter)

    def free_adapter(self, slot: int) -> None:
        """See `GpuAdapters.free`."""
        assert self._adapters is not None, "there is no slot"
        self._adapters.free(slot, self._stream)

    def set_pages(self, line: int, start: int, pages: Int32 | Sequence[int]) -> None:
        """A line's page table from entry `start` on, from the next pass on. Raises ValueError beyond its end."""
        self._tables.set_pages(line, start, pages)

    def capture(self, boundaries: tuple[int, ...]) -> None:
        """Keep the states of all rows at these boundaries, from the next pass on; with none, keep nothing.

        Waits for the passes under way. Graphs and memory stay until other boundaries are asked for: who asked may be
        back soon, as drafters that hang are.
        Raises ValueError for more than the limits allow, or boundaries that the model has not.
        """
        limits, known = self.limits, boundaries_of(self.config.num_layers)
        if len(boundaries) > limits.boundaries or not set(boundaries) <= set(known):
            raise ValueError(f"boundaries are {boundaries}, must be at most {limits.boundaries} of 0 to {known[-1]}")
        self.wait()
        if boundaries and boundaries != self._kept_boundaries:
            self._graphs.drop_late()
            self._pool.drop_states()
            self._host.reserve_states(limits.max_rows * len(boundaries) * self.config.hidden_size)
            with self._on_stream():
                self._sender.keep(boundaries)
            self._kept_boundaries = boundaries
        self._boundaries = boundaries

    def capture_next(self) -> bool:
        """Capture the graph of one more size of passes that keep states; False where no more are wanted, or can be had.

        To be called while no pass is under way, and waits: some 0.1 s. Ranks that share a model capture none ahead.
        """
        if self._stream is None or not self._boundaries or self._weights.shard.size > 1:
            return False
        buckets = (bucket._replace(boundaries=self._boundaries) for bucket in reversed(self._buckets.all()))
        bucket = next(filter(self._graphs.lacks, buckets), None)
        if bucket is None:
            return False
        with self._on_stream():
            self._send(bucket, PassPlan.empty(), self._host.take())
            for earlier in self._recent:
                earlier.on_next_launch()
            captured = self._graphs.capture_late(bucket)
        self.wait()
        return captured

    def launch(self, plan: PassPlan, copies: CopyPlan = no_copies, *, again: bool = False) -> PassHandle:
        """Queue a pass, and where it keeps states the `copies` of them, whose rows are those of a plan in order.

        One with choices follows the last pass launched. again: `decide_again` comes before the next one, and queues the
        copies. Raises ValueError for a plan that is larger than the limits; then nothing was queued.
        """
        plan = plan if plan.in_order else plan.reordered()
        bucket = bucket_of(self._buckets, plan, self._weights.shard)
        has_adapters = self._adapters is not None and self._tables.has_adapters(plan.lines)
        bucket = bucket._replace(boundaries=self._boundaries, adapters=has_adapters)
        buffer = self._host.take()
        with self._on_stream():
            while self._readers and self._stream is not None:
                self._stream.wait_event(self._readers.pop())
            for earlier in self._recent:
                earlier.on_next_launch()  # in front of what waits for a draft
            self._send(bucket, plan, buffer, chooses=len(plan.choices) > 0)
            if len(plan.choices):
                if plan.trees is not None:
                    self._outcome_selector.hand(bucket, plan.trees.queue())
                self._outcome_selector.run(bucket)
            self._graphs.run(bucket._replace(boundaries=self._boundaries or self.limits.expected_boundaries))
            ticket = self._receive(bucket, plan, buffer, copies, again=again)
            if len(plan.scored):
                ticket.scores = self._scorer.queue(self._pool.of(bucket).x, plan.scored)
        buffer.ticket = ticket
        self._recent.append(ticket)
        return ticket

    def start_after(self, read: torch.cuda.Event) -> None:
        """The next pass overwrites what somebody reads until this event comes."""
        self._readers.append(read)

    def logprobs(
        self, ticket: PassHandle, logit_indices: Int32, chosen: Int32, top: int
    ) -> tuple[Float32, Int32, Int32, Float32]:
        """Natural logarithms of probabilities from a pass's raw logits; waits for it, but not for passes after it.

        Inputs, int32 [n]: rows of the ticket's logits, and a token of each. Returns (of the chosen tokens float32 [n]
        and their ranks int32 [n] from 1; of the `top` likeliest tokens, likeliest first and lowest id first of equals,
        ids int32 [n, top] and logarithms float32 [n, top]). Raises ValueError where the logits are gone.
        """
        with self._on_stream(self._side_stream):
            ticket.wait_for_logits()
            return logprobs_of(self._ops, ticket.logits, logit_indices, chosen, top)

    @property
    def mask_rows(self) -> Words:
        """Masks for `decide_again`, uint32 [max_decode_rows, words]; they stay until that is over."""
        return self._masked.room.rows

    def decide_again(self, ticket: PassHandle, rows: Int32) -> None:
        """Queue behind the last pass launched what decides its items again by n `mask_rows`, the first ones.

        rows: int32 [n], places among its logits, below 0 for none. Lines with penalties were set as before the pass.
        """
        with self._on_stream():
            self._results.again(ticket, rows)

    def sample_masked(self, ticket: PassHandle, wanted: MaskedRows) -> list[int]:
        """Sample rows of the last pass launched again; waits for it."""
        with self._on_stream():
            return self._masked.sample(ticket.bucket, wanted)

    def scores(self, ticket: PassHandle) -> tuple[Float32, Int32, Int32, Float32]:
        """As `logprobs`, of the rows that the plan names as `scored`; they may be asked for at any time."""
        assert ticket.scores is not None
        with self._on_stream(self._side_stream):
            return read_scores(ticket.scores)

    def warm_up(self) -> None:
        """Compile what no graph holds, so that no request waits for that."""
        ticket = self.launch(PassPlan.chunk(np.zeros(1, np.int32), line=0, start=0, slots=np.zeros(1, np.int32)))
        ticket.results()
        self.logprobs(ticket, np.zeros(1, np.int32), np.zeros(1, np.int32), 1)

    def pass_costs(self) -> list[tuple[int, int, float]]:
        """See `measure_pass_costs`; the first time overwrites the first pages' KV, and is to be before any request."""
        self._pass_costs = self._pass_costs or measure_pass_costs(self, self.config.vocab_size)
        return self._pass_costs

    def wait(self) -> None:
        """Until everything queued is done."""
        if self._stream is not None:
            self._stream.synchronize()

    def _on_stream(self, stream: torch.cuda.Stream | None = None) -> AbstractContextManager[object]:
        """Queue what follows on a stream, the model's own unless another is given."""
        if self._stream is None:
            return nullcontext()
        return self._on_own_stream if stream is None else torch.cuda.stream(stream)

    def _run(self, bucket: Bucket, layers: int | None = None) -> None:
        self._forward.run(bucket, self._layout(bucket).views(self._plan), layers)

    def _prepare(self, bucket: Bucket) -> None:
        """Put a plan of nothing but padding on the device."""
        self._send(bucket, PassPlan.empty(), self._host.take(), chooses=may_select(bucket))

    def _send(self, bucket: Bucket, plan: PassPlan, buffer: PinnedBuffer, *, chooses: bool = False) -> None:
        """Queue the copy of a plan, its choices where it `chooses`, and the changes noted since the last one."""
        layout = self._layout(bucket)
        layout.pack(plan, self._tables.take_changes(layout.most_updates), buffer.words)
        end = layout.pack_choices(plan, buffer.words) if chooses else layout.words
        if self._plain is not None and not bucket.has_trees:
            self._plain.plan(bucket.without_states, plan)
        memory, on_device = buffer.part(end, self._plan)
        on_device.copy_(memory, non_blocking=True)

    def _receive(
        self, bucket: Bucket, plan: PassPlan, buffer: PinnedBuffer, copies: CopyPlan, *, again: bool
    ) -> PassHandle:
        """Queue what follows a pass."""
        return self._results.queue(bucket, plan, copies, buffer, self._graphs.times, again=again)
