"""A causal language model that drafts on a GPU: a round of all sessions is one CUDA graph.

What is drafted is what `draft_model.cpu` drafts, but for the rounding of bfloat16. A round computes the tokens
committed since the last one and then level after level of the trees without waiting for the host; longer texts are
worked off before it, and between rounds, in passes of their own.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from draft_service.proposers.base import DraftRequest, Opening, SessionRefusedError
from draft_service.proposers.cpu_common.kv_cache import DraftCache, DraftSession
from draft_service.proposers.draft_model.base import DraftModelBase, DraftModelConfig
from draft_service.proposers.gpu_common.draft_futures import BatchedDraftFuture
from draft_service.proposers.gpu_common.sampling_slots import (
    DraftVocabulary,
    count_output,
    is_filtered,
    is_penalised,
    set_rules,
)
from draft_service.proposers.gpu_common.supported_shapes import check_form, check_room, check_shapes
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.causal_forward import CausalForward
from slipstream_kernels.models.gpu.draft.round.draft_handle import DraftHandle
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.limits import PAGE_SIZE, DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundItem
from slipstream_kernels.models.gpu.forward.weights import GpuWeights, weight_bytes
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.models.page_pool import PagePool
from slipstream_kernels.token_tree import TokenTree

_log = logging.getLogger(__name__)

_CHUNK = 512
"""Rows of a pass over text unless configured: enough to use a GPU, few enough not to keep others waiting."""


@dataclass(slots=True)
class _Running:
    """A model at work: the sessions' pages, and what its tables hold of them."""

    draft: DraftRound
    cache: DraftCache
    vocabulary: DraftVocabulary
    free_lines: list[int]
    lines: dict[int, int]
    """by session"""


class GpuDraftModelProposer(DraftModelBase):
    """Drafts with a causal language model on one device; on `cpu` with the kernels' twins, slowly."""

    shares_thread = True

    def __init__(
        self,
        name: str,
        weights: GpuWeights,
        config: DraftModelConfig,
        tokenizer_fingerprint: str = "",
        scored: torch.Tensor | None = None,
    ) -> None:
        """scored: int64, the ids that are scored; None: all. CheckpointError where the device has no room."""
        model = weights.shard.config
        # Full attention equals one of windows as long as all positions fit a window.
        context = min(model.form.window or model.max_context, model.max_context, config.max_context)
        super().__init__(name, model, config, tokenizer_fingerprint, context, scored)
        self._weights = weights
        self.device = str(weights.embedding.device)
        self._behind: dict[int, None] = {}
        self._started: _Running | None = None
        self._start(model.vocab_size)

    @classmethod
    def load(
        cls,
        name: str,
        folder: Path,
        config: DraftModelConfig,
        device: str,
        tokenizer_fingerprint: str,
        scored: torch.Tensor | None = None,
    ) -> Self:
        """Read a Hugging Face folder. Raises CheckpointError likewise, NoGpuFormError where only the CPU can do it."""
        model, place = ModelConfig.from_folder(folder), torch.device(device)
        check_form(model)
        check_shapes(
            {"hidden_size": model.hidden_size, "intermediate_size": model.intermediate_size},
            heads=model.num_heads,
            kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            device=place,
        )
        check_room(weight_bytes(Shard(model)), place)
        return cls(name, GpuWeights.load(folder, model, device), config, tokenizer_fingerprint, scored)

    def limit_vocabulary(self, size: int) -> None:
        assert not self._running.lines
        if self._entries_below(size) != self._running.draft.forward.shape.entries:
            self._start(size)

    def open(self, session: int, opening: Opening) -> None:
        running, tokens = self._running, list(opening.token_ids)
        self._check_opening(tokens)
        if not running.free_lines:
            raise SessionRefusedError(f"{self.config.max_sessions} other requests are open, the most that can be")
        line = running.lines[session] = running.free_lines.pop()
        running.cache.add(DraftSession(session, tokens, opening.prompt_length, opening.sampling))
        eos = self._weights.shard.config.eos_token_ids
        with running.draft.change_tables():
            set_rules(
                running.draft.tables, line, running.vocabulary, opening.sampling, tokens, opening.prompt_length, eos
            )
        self._behind[session] = None

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        running = self._running
        self._check_commit(token_ids)
        state = running.cache[session]
        state.tokens.extend(token_ids)
        if is_penalised(state.sampling):
            with running.draft.change_tables():
                count_output(running.draft.tables, running.lines[session], running.vocabulary, token_ids)

    def close(self, session: int) -> None:
        running = self._running
        self._behind.pop(session, None)
        running.cache.remove(session)
        line = running.lines.pop(session, None)
        if line is not None:
            running.free_lines.append(line)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return self.begin(requests).result()

    def begin(self, requests: Sequence[DraftRequest]) -> BatchedDraftFuture[tuple[DraftRequest, DraftSession]]:
        return BatchedDraftFuture(requests, self._ready(requests), self._running.draft.max_sessions, self._draft)

    def advance(self) -> bool:
        """Compute up to a chunk of rows of sessions that are behind, all but their last token."""
        running = self._running
        batch: list[tuple[DraftSession, int]] = []
        room = running.draft.limits.chunk
        for number in list(self._behind):
            session = running.cache[number]
            rows = min(room, session.pending - 1)
            fits = len(session.tokens) <= self._max_context and self._reserve(
                session, session.cached + rows, [other.number for other, _ in batch]
            )
            if rows > 0 and fits:
                batch.append((session, rows))
                room -= rows
            if not fits or session.cached + rows >= len(session.tokens) - 1:
                del self._behind[number]
            if room == 0:
                break
        self._compute(batch)
        return bool(self._behind)

    def settle(self) -> None:
        if self._started is not None:
            self._running.draft.wait_for_text()

    def shut_down(self) -> None:
        self._started = None

    def _ready(self, requests: Sequence[DraftRequest]) -> list[tuple[DraftRequest, DraftSession]]:
        """Those whose rows of older text fit into one chunk together, shortest first; the others fall behind."""
        running = self._running
        limits = running.draft.limits
        ready: list[tuple[DraftRequest, DraftSession]] = []
        late: list[tuple[DraftSession, int]] = []
        busy = [request.session for request in requests]
        room = limits.chunk
        for request in sorted(requests, key=lambda request: running.cache[request.session].pending):
            session = running.cache[request.session]
            if len(session.tokens) > self._max_context:
                continue
            before = max(0, session.pending - limits.text_rows)
            if before > room or not self._reserve(session, len(session.tokens), busy):
                self._behind[request.session] = None
                continue
            room -= before
            self._behind.pop(request.session, None)
            ready.append((request, session))
            if before:
                late.append((session, before))
        self._compute(late)
        return ready

    def _compute(self, batch: Sequence[tuple[DraftSession, int]]) -> None:
        """Compute the next rows of text of each session, as many as beside it."""
        if batch:
            items = [self._item(session, session.cached, session.cached + rows) for session, rows in batch]
            self._running.draft.compute_text(items, [])
        for session, rows in batch:
            session.cached += rows

    def _draft(self, ready: Sequence[tuple[DraftRequest, DraftSession]]) -> tuple[list[int], DraftHandle | None]:
        items: list[RoundItem] = []
        for request, session in ready:
            length = len(session.tokens)
            nodes = min(request.max_nodes, self.max_nodes) - 1
            depth = min(request.max_depth, self.max_depth, nodes, self._max_context - length + 1)
            items.append(self._item(session, length - session.pending, length, nodes, depth))
            session.cached = length
        filtered = any(is_filtered(session.sampling) for _, session in ready)
        numbers = [session.number for _, session in ready]
        return numbers, self._running.draft.begin(items, [], filtered=filtered) if items else None

    def _item(self, session: DraftSession, begin: int, end: int, nodes: int = 0, depth: int = 0) -> RoundItem:
        line = self._running.lines[session.number]
        return RoundItem(line, begin, begin, session.tokens[begin:end], nodes, depth)

    def _reserve(self, session: DraftSession, length: int, busy: Collection[int]) -> bool:
        """Give the session pages for `length` tokens, as `DraftCache.reserve`."""
        running, held = self._running, len(session.pages)
        if not running.cache.reserve(session, length, busy):
            return False
        if len(session.pages) > held:
            running.draft.set_pages(running.lines[session.number], held, session.pages[held:])
        return True

    def _start(self, size: int) -> None:
        """Begin anew, without sessions, drafting ids below `size` alone."""
        self._started = None
        gc.collect()  # the graphs and pages of the one before
        config, cuda = self.config, self._weights.embedding.is_cuda
        ops = draft_ops.kernels() if cuda else draft_ops.twins()
        forward = CausalForward(self._weights, ops, size, self._scored)
        entries = forward.shape.entries
        tokens = min(config.max_cached_tokens, config.max_cached_bytes // forward.shape.slot_bytes)
        model = self._weights.shard.config
        try:
            limits = DraftLimits(
                max_depth=self.max_depth,
                width=min(config.top_k, entries),
                max_tokens=max(tokens, self._max_context),
                max_context=self._max_context,
                max_sessions=config.max_sessions,
                chunk=config.chunk or _CHUNK,
            )
            draft = DraftRound(forward, limits, rope=model.rope, ops=ops, progress=True)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        if cuda:
            _log.info("%s drafts on %s: %s", self.name, forward.device, draft.memory)
        self._started = _Running(
            draft=draft,
            cache=DraftCache(PagePool(limits.num_pages), PAGE_SIZE),
            vocabulary=DraftVocabulary(forward.vocabulary, entries),
            free_lines=list(range(limits.max_sessions - 1, -1, -1)),
            lines={},
        )

    @property
    def _running(self) -> _Running:
        assert self._started is not None
        return self._started
