"""Rounds of drafting on a GPU: a plan goes to the device, one CUDA graph runs, trees come back.

A round computes the latest rows of text of all its sessions, then level after level of their trees (EAGLE-2, arXiv
2406.16858, section 4), whatever the draft's network is. The host waits for the trees, and for no older text.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import numpy as np
import torch

from slipstream_kernels.jit.compile_ahead import compiling_ahead
from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.draft_forward import DraftForward, DraftSizes, PassRows
from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.draft.round.draft_handle import DraftHandle
from slipstream_kernels.models.gpu.draft.round.hidden_state_rows import HiddenStateInputs
from slipstream_kernels.models.gpu.draft.round.host_plans import HostPlans
from slipstream_kernels.models.gpu.draft.round.limits import PAGE_SIZE, DraftLimits
from slipstream_kernels.models.gpu.draft.round.memory_plan import plan_draft_memory, rotary_positions, scratch_slots
from slipstream_kernels.models.gpu.draft.round.plan_rows import MAX_DEPTH, ROWS, Int32
from slipstream_kernels.models.gpu.draft.round.round_attention import TextAttention, TreeAttention
from slipstream_kernels.models.gpu.draft.round.round_buckets import RoundBucket, RoundBuckets
from slipstream_kernels.models.gpu.draft.round.round_buffers import RoundBuffers
from slipstream_kernels.models.gpu.draft.round.round_plan import (
    Int64,
    RoundArrays,
    RoundItem,
    RoundLayout,
    item_table,
)
from slipstream_kernels.models.gpu.draft.round.target_pass import TargetPass
from slipstream_kernels.models.gpu.forward.kv_store import KVStore
from slipstream_kernels.models.gpu.graph.graph_runner import GraphRunner
from slipstream_kernels.models.gpu.graph.stream_context import StreamContext
from slipstream_kernels.models.gpu.memory_plan import available_bytes
from slipstream_kernels.ops.gpu.draft_trees import TREE_WIDTH, FrontierRows
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.ops.rope import Rope
from slipstream_kernels.token_tree import TokenTree

NOTHING_ASKED: Final[Int64] = np.empty((0, 2), np.int64)
"""Of rounds whose text is known."""


class DraftRound:
    """A draft's network with its KV pages, page table and sampling parameters. Used by one thread.

    Lines are the caller's to give out, below `limits.max_sessions`; so are pages, below `limits.num_pages`.
    """

    def __init__(
        self,
        forward: DraftForward,
        limits: DraftLimits,
        *,
        rope: Rope,
        ops: DraftOps | None = None,
        capture: bool = True,
        progress: bool = False,
    ) -> None:
        """`ops` are by default the kernels on a GPU, else their twins; on a GPU graphs are captured if asked for.

        Raises OutOfDeviceMemoryError.
        """
        self.limits = limits
        self.forward = forward
        self._device = device = forward.device
        self._buckets = RoundBuckets(limits)
        sessions = self._buckets.max_sessions
        self._sizes = DraftSizes(self._buckets.max_text_rows, sessions, limits.width)
        cuda = device.type == "cuda"
        graphs = self._buckets.all() if capture and cuda else []
        chain_rows = max(bucket.text_rows for bucket in self._buckets.all() if bucket.levels)
        available = available_bytes(device, limits.memory_utilization) + forward.nbytes
        self.memory = plan_draft_memory(
            forward, limits, self._sizes, chain_rows, graphs=len(graphs), available=available
        )
        self._ops = ops or (draft_ops.kernels() if cuda else draft_ops.twins())
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None
        self._text_done: torch.cuda.Event | None = None
        """Of the pass over text queued last."""
        self._states_read: torch.cuda.Event | None = None
        self._latest: DraftHandle | None = None
        """Of the round queued last; its trees are read before what they lie in is used again."""
        if cuda:
            self._stream, self._done = torch.cuda.Stream(device), torch.cuda.Event()
            self._states_read, self._text_done = torch.cuda.Event(), torch.cuda.Event()
            self._stream.wait_stream(torch.cuda.current_stream(device))  # where the weights come from
            self._own_stream = StreamContext(self._stream)
        self._layouts: dict[RoundBucket, tuple[RoundLayout, RoundArrays[torch.Tensor]]] = {}
        self._plan_views: dict[tuple[RoundBucket, int], RoundArrays[np.ndarray]] = {}
        """By bucket and the plan's turn."""
        with self._on_stream():
            self._allocate(chain_rows, rope)
        self._graphs = GraphRunner[RoundBucket](self._run)
        if graphs:
            with self._on_stream():
                with compiling_ahead():
                    self._graphs.meet(graphs)
                    self._meet_settling(graphs)
                self._graphs.capture(graphs, self._prepare, progress=progress)
                self._meet_settling(graphs)

    @property
    def max_sessions(self) -> int:
        """Of one round."""
        return self._buckets.max_sessions

    @property
    def tables(self) -> RequestTables:
        """Sampling parameters, over the draft's entries. Pages are set by `set_pages`."""
        return self._tables

    def set_pages(self, line: int, start: int, pages: Sequence[int]) -> None:
        """A line's page table from entry `start` on. Raises ValueError beyond its end."""
        self._tables.set_pages(line, start, pages)
        self._pages[line, start : start + len(pages)] = pages

    def change_tables(self) -> AbstractContextManager[object]:
        """Changes of the tables within are queued in the order of the rounds."""
        return self._on_stream()

    def compute_text(self, items: Sequence[RoundItem], features: Sequence[torch.Tensor]) -> None:
        """Queue keys and values of rows of text, `limits.chunk` at most together.

        features: bfloat16 [rows, shape.features], on any device, end to end the rows of all items; none where the draft
        reads none. Whatever is queued next finds them computed. Waits for those that are on the host to be read.
        """
        staged = not all(part.is_cuda for part in features)
        if staged:
            self.finish()
        table, tokens = item_table(items)
        self._launch(self._buckets.find(0, len(tokens), 0, filtered=False), table, tokens, features)
        if self._text_done is not None:
            self._text_done.record(self._stream)
            if staged:
                self._text_done.synchronize()

    def wait_for_text(self) -> None:
        """Wait until the text queued so far is computed. For any thread."""
        if self._text_done is not None:
            self._text_done.synchronize()

    def draft(self, items: Sequence[RoundItem], features: Sequence[torch.Tensor], *, filtered: bool) -> list[TokenTree]:
        """The trees of a round; see `begin`."""
        return self.begin(items, features, filtered=filtered).trees()

    def begin(self, items: Sequence[RoundItem], features: Sequence[torch.Tensor], *, filtered: bool) -> DraftHandle:
        """Queue a round: `max_sessions` items at most, each with `limits.text_rows` rows of text at most.

        features: as in `compute_text`. filtered: some line samples with top_k, top_p or min_p. The rows' keys and
        values are in their pages once the trees are there. Whatever is queued next waits for them.
        """
        table, tokens = item_table(items)
        self.finish()
        self._launch(self._find(table, filtered=filtered), table, tokens, features)
        self._latest = DraftHandle(self._result_words[: len(items)], self._done)
        return self._latest

    def follow(
        self,
        items: Sequence[RoundItem],
        asked: Sequence[tuple[int, int]],
        results: torch.Tensor,
        source: torch.Tensor,
        *,
        ready: torch.cuda.Event | None,
        filtered: bool,
    ) -> DraftHandle:
        """Queue a round, as `begin`, behind the target's pass that decides its text: the device takes it from there.

        Each item's `token_ids` are placeholders, of any value, for the most tokens that the pass may commit: as many
        rows of text as it does commit come to count, and only their keys and values are in the pages then. asked: for
        each item, its row of `results`, int32 [n, 130] of `tree_walk`, and where in `source`, bfloat16 [any], the
        states of its rows begin, end to end. Both are read once `ready` has come, None where they are there, and are
        free again after the ticket's `states_read`. The trees stay on the device until the next such round. Tokens must
        be some that the draft embeds. Raises ValueError with nothing queued.
        """
        table, tokens = item_table(items)
        followed = TargetPass(np.array(asked, np.int64).reshape(-1, 2), results, source)
        followed.check(table, self.forward.shape.features, self._device)
        bucket = self._find(table, filtered=filtered)
        self.finish()
        with self._on_stream():
            self._send(bucket, table, tokens, followed.asked)
            if self._stream is not None and ready is not None:
                self._stream.wait_event(ready)
            self._settle(bucket, followed)
            self._replay(bucket, handed=True)
        self._latest = DraftHandle(self._result_words[: len(items)], self._done, self._states_read, self._handed)
        return self._latest

    @property
    def is_free(self) -> bool:
        """Whether a round would be queued at once: the trees of the one before are there."""
        return self._latest is None or self._latest.wait(0.0)

    def finish(self) -> None:
        """Wait for the round under way, whose ticket keeps its trees, so that another may be queued."""
        latest, self._latest = self._latest, None
        if latest is not None:
            latest.trees()

    def _find(self, table: Int32, *, filtered: bool) -> RoundBucket:
        rows, levels = int(table[:, ROWS].sum()), int(table[:, MAX_DEPTH].max())
        return self._buckets.find(len(table), rows, levels, filtered=filtered)

    def _launch(self, bucket: RoundBucket, table: Int32, tokens: Int32, features: Sequence[torch.Tensor]) -> None:
        """Queue a round or a pass over text, and the copy of its trees, if any."""
        if self._stream is not None and any(part.is_cuda for part in features):
            self._stream.wait_stream(torch.cuda.current_stream(self._device))  # where they come from
            for part in features:
                if part.device == self._device:
                    part.record_stream(self._stream)  # its memory is used again once it is read
        with self._on_stream():
            if features:
                self._features.load(features)
            self._send(bucket, table, tokens)
            self._replay(bucket)

    def _replay(self, bucket: RoundBucket, *, handed: bool = False) -> None:
        """Queue what the plan on the device says, and the copy of the trees, if any; those `handed` on stay there."""
        self._graphs.run(bucket)
        if bucket.levels:
            trees = self._buffers.trees(bucket.sessions).trees.result
            if handed:
                self._handed[: bucket.sessions].copy_(trees)
            self._result[: bucket.sessions].copy_(trees, non_blocking=True)
            if self._done is not None:
                self._done.record(self._stream)

    def _send(self, bucket: RoundBucket, table: Int32, tokens: Int32, asked: Int64 = NOTHING_ASKED) -> None:
        """Queue the copy of a plan, and of the changes of the tables noted since the last one.

        `table` and `tokens` are those of `item_table`, `asked` those of `pack_follows`.
        """
        layout, _ = self._laid_out(bucket)
        plans = self._host_plans
        plans.take()
        host = self._plan_views.get((bucket, plans.turn))
        if host is None:
            host = self._plan_views[bucket, plans.turn] = layout.views(plans.words)
        layout.pack(table, tokens, self._pages, plans.words)
        layout.pack_follows(table, asked, host.follows)
        changes = self._tables.take_changes(len(host.updates))
        host.updates[: len(changes)] = changes
        host.updates[len(changes) :] = -1
        plans.send(self._plan, layout.words)

    def _prepare(self, bucket: RoundBucket) -> None:
        """Put a plan of nothing but padding on the device."""
        self._send(bucket, *item_table([]))

    def _settle(self, bucket: RoundBucket, followed: TargetPass) -> None:
        """Queue what a round that follows a pass has in front of it."""
        layout, plan = self._laid_out(bucket)
        features = self._buffers.features[: bucket.text_rows] if self.forward.shape.features else None
        followed.settle(self._ops, plan, layout.segment_rows, self.limits.width, features, self._states_read)

    def _meet_settling(self, buckets: Sequence[RoundBucket]) -> None:
        """Settle padding once for each shape: a kernel that is not compiled would hold up the first such round."""
        results = torch.zeros(1, RESULT_WIDTH, dtype=torch.int32, device=self._device)
        followed = TargetPass(NOTHING_ASKED, results, torch.zeros(1, dtype=torch.bfloat16, device=self._device))
        for bucket in buckets:
            if bucket.levels:
                self._prepare(bucket)
                self._settle(bucket, followed)
        torch.cuda.current_stream().synchronize()

    def _run(self, bucket: RoundBucket) -> None:
        """Queue all of a round's ops, or those of a pass over text."""
        _, plan = self._laid_out(bucket)
        layers = self._ops.layers
        layers.write_words(self._tables.words, plan.updates)
        features = self._buffers.features[: bucket.text_rows] if self.forward.shape.features else None
        self.forward.text(self._text_rows(bucket, plan), features, plan.last_rows)
        if bucket.levels:
            self._grow(bucket, plan)

    def _text_rows(self, bucket: RoundBucket, plan: RoundArrays[torch.Tensor]) -> PassRows:
        layers, kv, pages = self._ops.layers, self._kv, self._tables.page_table
        attend: TextAttention | TreeAttention
        if not bucket.levels:
            attend = TextAttention(layers, kv, pages, plan.tiles)
        else:
            b, rows = self._buffers, bucket.text_rows
            layers.tree_paths(plan.parents, plan.root_rows, b.text_paths[:rows], b.text_depths[:rows])
            attend = TreeAttention(
                ops=layers,
                kv=kv,
                page_table=pages,
                segments=plan.segments,
                item_offsets=plan.item_offsets,
                lines=plan.lines,
                prefix_lengths=plan.prefix_lengths,
                paths=b.text_paths[:rows],
                depths=b.text_depths[:rows],
                write_slots=plan.write_slots,
                decode_rows=plan.decode_rows,
                partials=b.partials(rows),
            )
        return PassRows(plan.token_ids, plan.positions, plan.write_slots, kv, self._rotary, attend)

    def _grow(self, bucket: RoundBucket, plan: RoundArrays[torch.Tensor]) -> None:
        b, depths = self._buffers, self._buffers.trees(bucket.sessions).depths[: bucket.levels - 1]
        self.forward.score(0, b.logits[: bucket.sessions])
        self._choose(bucket, plan, 0, None)
        for depth, rows in enumerate(depths, start=1):
            self.forward.nodes(depth, self._node_rows(depth, rows, plan), rows.parent_rows)
            self.forward.score(depth, b.logits[: len(rows.token_ids)])
            self._choose(bucket, plan, depth, rows)

    def _node_rows(self, depth: int, rows: FrontierRows, plan: RoundArrays[torch.Tensor]) -> PassRows:
        b, n = self._buffers, len(rows.token_ids)
        attend = TreeAttention(
            ops=self._ops.layers,
            kv=self._kv,
            page_table=self._tables.page_table,
            segments=plan.node_segments,
            item_offsets=plan.node_item_offsets,
            lines=plan.node_lines,
            prefix_lengths=plan.node_prefix_lengths,
            paths=rows.paths,
            depths=b.depths[depth, :n],
            write_slots=self._node_slots,
            decode_rows=plan.node_decode_rows,
            partials=b.partials(n),
        )
        slots = self._node_slots[rows.first_row : rows.first_row + n]
        return PassRows(rows.token_ids, plan.node_positions[depth - 1], slots, self._kv, self._rotary, attend)

    def _choose(
        self, bucket: RoundBucket, plan: RoundArrays[torch.Tensor], depth: int, scored: FrontierRows | None
    ) -> None:
        """Add the children of the roots, or of the rows scored, to the trees."""
        b, vocabulary = self._buffers, self.forward.vocabulary
        trees = b.trees(bucket.sessions)
        n = bucket.sessions if scored is None else len(scored.token_ids)
        places, scores, log_probs = b.places[:n], b.scores[:n], b.log_probs[:n]
        self._ops.draft_top_k(
            b.logits[:n],
            plan.roots if scored is None else scored.logit_rows,
            plan.root_positions if scored is None else plan.node_choices[depth - 1],
            plan.root_lines if scored is None else plan.node_lines,
            b.no_paths[:n] if scored is None else scored.paths,
            b.depths[depth, :n],
            plan.roots if scored is None else scored.all_places,
            self._tables.sampling,
            vocabulary,
            b.workspace,
            places,
            scores,
            log_probs,
            filtered=bucket.filtered,
        )
        following = trees.depths[depth] if depth + 1 < bucket.levels else None
        self._ops.draft_expand(
            places, scores, log_probs, scored, plan.limits, depth + 1, vocabulary, trees.trees, following
        )

    def _laid_out(self, bucket: RoundBucket) -> tuple[RoundLayout, RoundArrays[torch.Tensor]]:
        """A bucket's layout with its arrays on the device."""
        if bucket not in self._layouts:
            layout = RoundLayout(bucket, self.forward.shape, self.limits)
            self._layouts[bucket] = layout, layout.views(self._plan)
        return self._layouts[bucket]

    def _allocate(self, chain_rows: int, rope: Rope) -> None:
        limits, shape, device = self.limits, self.forward.shape, self._device
        pinned = device.type == "cuda"
        self._tables = RequestTables(limits.lines, shape.entries, device)
        self._pages = np.zeros((limits.max_sessions, limits.lines.context_pages), np.int32)
        first = limits.num_pages * PAGE_SIZE
        scratch = scratch_slots(limits, self._sizes)
        size = (shape.layers, shape.kv_heads, first + scratch, shape.head_dim)
        keys, values = (torch.zeros(size, dtype=torch.bfloat16, device=device) for _ in range(2))
        self._kv = KVStore(keys, values, PAGE_SIZE)
        self._node_slots = torch.arange(first, first + scratch, dtype=torch.int32, device=device)
        table = rope.table(rotary_positions(limits), shape.head_dim)
        self._rotary = torch.from_numpy(table).to(device)
        self._buffers = RoundBuffers(shape, limits, self._sizes, chain_rows, device)
        self._features = HiddenStateInputs(self._buffers.features)
        self.forward.allocate(self._sizes)
        # The largest bucket of each kind comes first.
        words = max(RoundLayout(bucket, shape, limits).words for bucket in self._buckets.all())
        self._plan = torch.zeros(words, dtype=torch.int32, device=device)
        self._host_plans = HostPlans(words, device)
        self._result = torch.zeros(self.max_sessions, TREE_WIDTH, dtype=torch.int32, pin_memory=pinned)
        self._result_words = self._result.numpy()
        self._handed = torch.zeros(self.max_sessions, TREE_WIDTH, dtype=torch.int32, device=device)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else self._own_stream
