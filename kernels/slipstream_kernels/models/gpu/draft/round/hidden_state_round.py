"""Rounds of drafting on a GPU from one state of the target for each tree: one CUDA graph, and no text in front of it.

Where tokens are scored without regard to one another, as Medusa's heads do, one pass scores all levels and one kernel
makes the trees of all their combinations; only a request with penalties has scores that depend on the path, and makes
its round go level by level. Else trees grow level by level (EAGLE-2, arXiv 2406.16858, section 4), the `width` best
nodes of each being expanded. The host waits once, for the trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from slipstream_kernels.jit.compile_ahead import compiling_ahead
from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.draft.networks.hidden_state_forward import HiddenStateForward
from slipstream_kernels.models.gpu.draft.round.draft_handle import DraftHandle
from slipstream_kernels.models.gpu.draft.round.hidden_state_plan import (
    HiddenStateArrays,
    HiddenStateBucket,
    HiddenStateBuckets,
    HiddenStateItem,
    HiddenStateLayout,
    HiddenStateLimits,
)
from slipstream_kernels.models.gpu.draft.round.hidden_state_rows import HiddenStateInputs
from slipstream_kernels.models.gpu.draft.round.round_buffers import RoundTrees
from slipstream_kernels.models.gpu.graph.graph_runner import GraphRunner
from slipstream_kernels.models.gpu.graph.stream_context import StreamContext
from slipstream_kernels.models.gpu.memory_plan import OutOfDeviceMemoryError, available_bytes
from slipstream_kernels.ops.gpu.draft_top_k import draft_top_k_workspace
from slipstream_kernels.ops.gpu.draft_trees import TREE_WIDTH, FrontierRows, draft_trees, frontier_rows
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

_GRAPH_BYTES = 4 << 20
"""What a captured graph takes of the device's memory, at most."""
_CONTEXT_BYTES = 512 << 20
"""Compiled kernels and what the allocator rounds up."""


class HiddenStateRound:
    """A draft's network with its sampling parameters. Used by one thread.

    Lines of the tables are the caller's to give out, below `limits.max_sessions`.
    """

    def __init__(
        self,
        forward: HiddenStateForward,
        limits: HiddenStateLimits,
        *,
        ops: DraftOps | None = None,
        capture: bool = True,
        progress: bool = False,
    ) -> None:
        """`ops` are by default the kernels on a GPU, else their twins; on a GPU graphs are captured if asked for.

        Raises OutOfDeviceMemoryError.
        """
        assert limits.max_depth <= forward.levels
        self.limits = limits
        self.forward = forward
        self._device = device = forward.device
        self._buckets = HiddenStateBuckets(limits, independent=forward.independent)
        cuda = device.type == "cuda"
        graphs = self._buckets.all() if capture and cuda else []
        self._ops = ops or (draft_ops.kernels() if cuda else draft_ops.twins())
        self._check_room(len(graphs))
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None
        self._latest: DraftHandle | None = None
        """Of the round queued last; its trees are read before what they lie in is used again."""
        if cuda:
            self._stream, self._done = torch.cuda.Stream(device), torch.cuda.Event()
            self._stream.wait_stream(torch.cuda.current_stream(device))  # where the weights come from
            self._own_stream = StreamContext(self._stream)
        self._layouts: dict[
            HiddenStateBucket, tuple[HiddenStateLayout, HiddenStateArrays[np.ndarray], HiddenStateArrays[torch.Tensor]]
        ] = {}
        self._trees: dict[int, RoundTrees] = {}
        with self._on_stream():
            self._allocate()
        self._graphs = GraphRunner[HiddenStateBucket](self._run)
        if graphs:
            with self._on_stream():
                with compiling_ahead():
                    self._graphs.meet(graphs)
                self._graphs.capture(graphs, self._prepare, progress=progress)

    @property
    def max_sessions(self) -> int:
        """Of one round."""
        return self._buckets.max_sessions

    @property
    def tables(self) -> RequestTables:
        """Sampling parameters, over the draft's entries."""
        return self._tables

    def change_tables(self) -> AbstractContextManager[object]:
        """Changes of the tables within are queued in the order of the rounds."""
        return self._on_stream()

    def draft(
        self, items: Sequence[HiddenStateItem], states: Sequence[torch.Tensor], *, filtered: bool, penalised: bool
    ) -> list[TokenTree]:
        """The trees of a round; see `begin`."""
        return self.begin(items, states, filtered=filtered, penalised=penalised).trees()

    def begin(
        self, items: Sequence[HiddenStateItem], states: Sequence[torch.Tensor], *, filtered: bool, penalised: bool
    ) -> DraftHandle:
        """Queue a round of one to `max_sessions` items.

        states: bfloat16 [1, features] of each, on any device, which must live until the trees are there. filtered: some
        line samples with top_k, top_p or min_p; penalised: some has penalties. Whatever is queued next waits for the
        trees.
        """
        latest, self._latest = self._latest, None
        if latest is not None:
            latest.trees()
        levels = max(item.max_depth for item in items)
        bucket = self._buckets.find(len(items), levels, filtered=filtered, penalised=penalised)
        if self._stream is not None and any(state.is_cuda for state in states):
            self._stream.wait_stream(torch.cuda.current_stream(self._device))  # where they come from
        with self._on_stream():
            self._features.load(states)
            self._send(bucket, items)
            self._graphs.run(bucket)
            trees = self._trees_of(bucket.sessions).trees.result
            self._result[: bucket.sessions].copy_(trees, non_blocking=True)
            if self._done is not None:
                self._done.record(self._stream)
        self._latest = DraftHandle(self._result_words[: len(items)], self._done)
        return self._latest

    def _send(self, bucket: HiddenStateBucket, items: Sequence[HiddenStateItem]) -> None:
        """Queue the copy of a plan, and of the changes of the tables noted since the last one."""
        layout, host, _ = self._laid_out(bucket)
        layout.pack(items, host)
        changes = self._tables.take_changes(len(host.updates))
        host.updates[: len(changes)] = changes
        host.updates[len(changes) :] = -1
        self._plan[: layout.words].copy_(self._host_plan[: layout.words], non_blocking=True)

    def _prepare(self, bucket: HiddenStateBucket) -> None:
        """Put a plan of nothing but padding on the device; the one before it has been read."""
        if self._stream is not None:
            self._stream.synchronize()
        self._send(bucket, [])

    def _run(self, bucket: HiddenStateBucket) -> None:
        """Queue all of a round's ops."""
        plan = self._laid_out(bucket)[2]
        self._ops.layers.write_words(self._tables.words, plan.updates)
        self.forward.roots(self._states[: bucket.sessions], plan.token_ids, bucket.levels)
        if bucket.by_node:
            self._grow(bucket, plan)
        else:
            self._combine(bucket, plan)

    def _combine(self, bucket: HiddenStateBucket, plan: HiddenStateArrays[torch.Tensor]) -> None:
        """All levels at once, and trees of their combinations."""
        n = bucket.levels * bucket.sessions
        self.forward.score_levels(self._logits[:n])
        found = self._best(bucket, plan.rows, plan.positions, plan.lines, self._no_paths, self._no_depths, plan.rows)
        trees = self._trees_of(bucket.sessions).trees
        self._ops.draft_combine(*found, plan.limits, self.forward.vocabulary, trees)

    def _grow(self, bucket: HiddenStateBucket, plan: HiddenStateArrays[torch.Tensor]) -> None:
        """Level by level, with rows of their own for nodes that are expanded."""
        trees = self._trees_of(bucket.sessions)
        self.forward.score(0, self._logits[: bucket.sessions])
        found = self._best(bucket, plan.rows, plan.positions, plan.lines, self._no_paths, self._no_depths, plan.rows)
        self._expand(bucket, plan, found, 0, None)
        for depth, rows in enumerate(trees.depths[: bucket.levels - 1], start=1):
            n = len(rows.token_ids)
            self.forward.nodes(depth, rows.token_ids, rows.parent_rows)
            self.forward.score(depth, self._logits[:n])
            positions, depths = plan.node_positions[depth - 1], self._depths[depth, :n]
            found = self._best(bucket, rows.logit_rows, positions, plan.node_lines, rows.paths, depths, rows.all_places)
            self._expand(bucket, plan, found, depth, rows)

    def _best(
        self,
        bucket: HiddenStateBucket,
        rows: torch.Tensor,
        positions: torch.Tensor,
        lines: torch.Tensor,
        paths: torch.Tensor,
        depths: torch.Tensor,
        places: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Places, scores and log-probabilities [rows, width] of the children below the rows that were scored last."""
        n = rows.numel()
        found = self._places[:n], self._scores[:n], self._log_probs[:n]
        self._ops.draft_top_k(
            self._logits[:n],
            rows.flatten(),
            positions.flatten(),
            lines.flatten(),
            paths[:n],
            depths[:n],
            places.flatten(),
            self._tables.sampling,
            self.forward.vocabulary,
            self._workspace,
            *found,
            filtered=bucket.filtered,
        )
        return found

    def _expand(
        self,
        bucket: HiddenStateBucket,
        plan: HiddenStateArrays[torch.Tensor],
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        depth: int,
        scored: FrontierRows | None,
    ) -> None:
        """Add the children of the roots, or of the rows scored, to the trees."""
        trees = self._trees_of(bucket.sessions)
        following = trees.depths[depth] if depth + 1 < bucket.levels else None
        vocabulary = self.forward.vocabulary
        self._ops.draft_expand(*found, scored, plan.limits, depth + 1, vocabulary, trees.trees, following)

    def _trees_of(self, sessions: int) -> RoundTrees:
        """Of rounds of so many sessions."""
        if sessions not in self._trees:
            width, levels = self.limits.width, self.limits.max_depth
            self._trees[sessions] = RoundTrees(
                draft_trees(sessions, width, self._device), frontier_rows(sessions, width, levels, self._device)
            )
        return self._trees[sessions]

    def _laid_out(
        self, bucket: HiddenStateBucket
    ) -> tuple[HiddenStateLayout, HiddenStateArrays[np.ndarray], HiddenStateArrays[torch.Tensor]]:
        """A bucket's layout with its arrays on the host and on the device."""
        if bucket not in self._layouts:
            layout = HiddenStateLayout(bucket, self.limits.width)
            self._layouts[bucket] = layout, layout.views(self._host_words), layout.views(self._plan)
        return self._layouts[bucket]

    @property
    def _scored_rows(self) -> int:
        """Most rows that are scored in one pass."""
        sessions, limits = self.max_sessions, self.limits
        return sessions * max(limits.width, limits.max_depth if self.forward.independent else 1)

    def _check_room(self, graphs: int) -> None:
        """Raises OutOfDeviceMemoryError. `graphs` is how many will be captured."""
        limits, forward, rows = self.limits, self.forward, self._scored_rows
        parts = {
            "weights": forward.nbytes,
            "logits": _workspace_bytes(rows, forward.entries, limits.width),
            "activations": forward.activation_bytes(self.max_sessions, limits.width),
            "tables": RequestTables(limits.lines, forward.entries, "meta").nbytes,
            "graphs and kernels": _CONTEXT_BYTES + graphs * _GRAPH_BYTES if graphs else 0,
        }
        available = available_bytes(self._device, limits.memory_utilization) + forward.nbytes
        figures = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in parts.items())
        needed = sum(parts.values())
        self.memory = f"{figures}: {needed / 2**30:.2f} GiB of {available / 2**30:.2f} GiB available"
        if needed > available:
            raise OutOfDeviceMemoryError(f"out of device memory: {self.memory}; lower max_sessions, top_k or max_depth")

    def _allocate(self) -> None:
        limits, forward, device, rows = self.limits, self.forward, self._device, self._scored_rows
        pinned = device.type == "cuda"

        def empty(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self._tables = RequestTables(limits.lines, forward.entries, device)
        self._states = empty(self.max_sessions, forward.features, dtype=torch.bfloat16)
        self._features = HiddenStateInputs(self._states)
        self._no_paths, self._no_depths = empty(rows, MAX_ROWS), empty(rows)
        self._depths = torch.arange(limits.max_depth, dtype=torch.int32, device=device)[:, None].repeat(1, rows)
        self._logits = empty(rows, forward.entries, dtype=torch.float32)
        self._places = empty(rows, limits.width)
        self._scores, self._log_probs = (empty(rows, limits.width, dtype=torch.float32) for _ in range(2))
        self._workspace = draft_top_k_workspace(rows, forward.entries, limits.width, device)
        forward.allocate(self.max_sessions, limits.width)
        words = max(HiddenStateLayout(bucket, limits.width).words for bucket in self._buckets.all())
        self._plan = empty(words)
        self._host_plan = torch.zeros(words, dtype=torch.int32, pin_memory=pinned)
        self._host_words = self._host_plan.numpy()
        self._result = torch.zeros(self.max_sessions, TREE_WIDTH, dtype=torch.int32, pin_memory=pinned)
        self._result_words = self._result.numpy()

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else self._own_stream


def _workspace_bytes(rows: int, entries: int, width: int) -> int:
    """Of logits, and of what is made of them."""
    workspace = draft_top_k_workspace(rows, entries, width, "meta")
    tensors = workspace.histograms, workspace.keys, workspace.logits, workspace.peaks, workspace.sums
    return 4 * rows * entries + sum(tensor.nbytes for tensor in tensors)
