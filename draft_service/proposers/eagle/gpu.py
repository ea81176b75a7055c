"""EAGLE heads, and single MTP layers, on a GPU: a round of all sessions is one CUDA graph.

What is drafted is what `eagle.cpu` drafts, but for the rounding of bfloat16. A round computes the latest rows of
text of its sessions and then level after level of their trees without waiting for the host; longer texts are worked off
before it, and between rounds, in passes of their own.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from draft_service.heads.eagle import EagleHead
from draft_service.proposers.base import DraftFuture, DraftRequest, FollowRequest, Opening, SessionRefusedError
from draft_service.proposers.eagle.base import EagleBase, EagleConfig
from draft_service.proposers.eagle.gpu_weights import head_weights
from draft_service.proposers.eagle.on_device_round import ChainedDraftFuture, Laid, OnDeviceRound
from draft_service.proposers.eagle.paged_sessions import PagedSession, PagedSessions
from draft_service.proposers.gpu_common.draft_futures import BatchedDraftFuture
from draft_service.proposers.gpu_common.sampling_slots import (
    DraftVocabulary,
    count_output,
    set_rules,
)
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.eagle_forward import EagleForward
from slipstream_kernels.models.gpu.draft.networks.eagle_weights import EagleWeights
from slipstream_kernels.models.gpu.draft.networks.scored_rows import limited_rows
from slipstream_kernels.models.gpu.draft.round.draft_handle import DraftHandle
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundItem
from slipstream_kernels.token_tree import TokenTree

_log = logging.getLogger(__name__)

_LONG = 32
"""Rows of text that a session may wait with while nobody asks for its trees: a pass over few takes no less time."""
_CHUNK = 512
"""Rows of a pass over text unless configured: enough to use a GPU, few enough not to keep others waiting."""


class GpuEagleProposer(EagleBase):
    """Drafts with an EAGLE head on one device; on `cpu` with the kernels' twins, slowly."""

    shares_thread = follows = True

    def __init__(
        self,
        name: str,
        head: EagleHead,
        config: EagleConfig,
        device: torch.device | str,
        tokenizer_fingerprint: str = "",
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        """Raises NoGpuFormError where a GPU cannot draft with the head, CheckpointError where it has no room for it."""
        super().__init__(name, head, config, tokenizer_fingerprint)
        self._eos = tuple(eos_token_ids)
        self._rope = head.config.rope
        self._weights = head_weights(head, torch.device(device))
        self.device = self.state_device = str(device)
        self._target_size = self.vocab_size
        self._behind: dict[int, None] = {}
        self._followed: OnDeviceRound | None = None
        """Queued behind a pass, for what that decides."""
        self._started: tuple[DraftRound, PagedSessions, DraftVocabulary] | None = None
        self._start(self._weights)

    def limit_vocabulary(self, size: int) -> None:
        (head,), ids = limited_rows([self._weights.head], self._weights.ids, size)
        weights = replace(self._weights, head=head, ids=ids)
        draft, sessions, _ = self._running
        assert not len(sessions)
        self._target_size = size
        if len(weights.head) != draft.forward.shape.entries:
            self._start(weights)

    def open(self, session: int, opening: Opening) -> None:
        draft, sessions, vocabulary = self._running
        tokens = opening.token_ids
        if max(tokens) >= self.vocab_size:
            raise SessionRefusedError(f"token {max(tokens)} is outside the head's vocabulary")
        added = sessions.add(session, tokens, opening.sampling, opening.cached_length)
        with draft.change_tables():
            set_rules(draft.tables, added.line, vocabulary, opening.sampling, tokens, opening.prompt_length, self._eos)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        draft, sessions, vocabulary = self._running
        if max(token_ids) >= self.vocab_size:
            raise ValueError(f"token {max(token_ids)} is outside the head's vocabulary")
        state = sessions[session]
        state.commit(token_ids)
        if state.is_penalised:
            with draft.change_tables():
                count_output(draft.tables, state.line, vocabulary, token_ids)

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        state = self._running[1][session]
        if state.is_full:
            return
        assert first_position == state.begin + state.length + state.pending
        state.add(features)
        self._behind[session] = None

    def close(self, session: int) -> None:
        self._behind.pop(session, None)
        self._running[1].remove(session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return list(self.begin(requests).result())

    def begin(self, requests: Sequence[DraftRequest]) -> DraftFuture:
        followed, sessions = self._followed, self._running[1]
        if followed is None:
            return self._begin(requests)
        wanted: dict[PagedSession, DraftRequest] = {}
        for request in requests:
            session = sessions[request.session]
            if followed.made_for(session):
                wanted[session] = request
        if not wanted:
            return self._begin(requests)
        self._followed = None
        for session in wanted:
            session.compute(session.pending)
            self._behind.pop(session.number, None)
        return ChainedDraftFuture(followed, wanted, requests, self._begin)

    def follow(self, requests: Sequence[FollowRequest], outcome: DevicePassResult) -> EnqueuedRound:
        """Where tokens are penalised that were output, those of the pass itself are not yet.

        Text that nobody has asked trees for, such as a new session's, is computed before, as far as one chunk goes.
        """
        draft, sessions, _ = self._running
        if self._target_size > self.vocab_size or not draft.is_free:
            return EnqueuedRound()
        self._followed = None
        self._catch_up([sessions[request.session] for request in requests])
        items: list[RoundItem] = []
        asked: list[tuple[int, int]] = []
        laid: dict[PagedSession, Laid] = {}
        limits, filtered = draft.limits, False
        most_sessions, text_rows = draft.max_sessions, limits.text_rows
        for number, row, rows, place, max_nodes, max_depth in requests:
            if len(items) == most_sessions:
                break
            session, nodes = sessions[number], max_nodes - 1
            if session.pending or session.is_full or rows > text_rows or not session.is_complete:
                continue
            depth = min(max_depth, nodes)
            item = sessions.lay_rows(draft, session, rows, nodes, depth)
            if item is not None:
                items.append(item)
                asked.append((row, place))
                laid[session] = Laid(session.commits, session.length, rows, min(nodes, limits.max_nodes(depth)), depth)
                filtered |= session.is_filtered
        if not items:
            return EnqueuedRound()
        handle = draft.follow(items, asked, outcome.results, outcome.states, ready=outcome.ready, filtered=filtered)
        self._followed = OnDeviceRound(handle, laid, outcome.came)
        read = () if handle.states_read is None else (handle.states_read,)
        trees = {
            row: DeviceTree(handle, place, each.nodes, each.depth)
            for place, ((row, _), each) in enumerate(zip(asked, laid.values(), strict=True))
        }
        return EnqueuedRound(read, trees)

    def _catch_up(self, asked: Sequence[PagedSession]) -> None:
        """Compute the rows of text that wait, of sessions whose states are all there, one chunk's together at most."""
        late: list[tuple[PagedSession, int]] = []
        room = self._round.limits.chunk
        for session in asked:
            if 0 < session.pending <= room and session.is_complete and not session.is_full:
                late.append((session, session.pending))
                room -= session.pending
        self._compute(late)

    def advance(self) -> bool:
        """Compute up to a chunk of rows of text, of sessions that wait with more of them than a round takes along.

        Once there are as many as make a pass worth while, and before there are more than one chunk takes.
        """
        sessions, limits = self._running[1], self._round.limits
        behind = [sessions[number] for number in self._behind]
        long = [session for session in behind if session.pending > limits.text_rows]
        if not self._are_many(long):
            return False
        batch: list[tuple[PagedSession, int]] = []
        room = limits.chunk
        for session in long:
            rows = min(room, session.pending)
            batch.append((session, rows))
            room -= rows
            if room == 0:
                break
        self._compute(batch)
        return self._are_many(long)

    def settle(self) -> None:
        if self._started is not None:
            self._round.wait_for_text()

    def _are_many(self, long: Sequence[PagedSession]) -> bool:
        limits = self._round.limits
        most = max(limits.text_rows, min(_LONG, limits.chunk // 4))
        waiting = sum(max(0, session.pending - limits.text_rows) for session in long)
        return waiting > limits.chunk // 2 or any(session.pending > most for session in long)

    def shut_down(self) -> None:
        self._started = self._followed = None

    def _begin(self, requests: Sequence[DraftRequest]) -> BatchedDraftFuture[tuple[DraftRequest, PagedSession]]:
        self._followed = None  # what it computed is computed again
        return BatchedDraftFuture(requests, self._ready(requests), self._round.max_sessions, self._draft)

    def _ready(self, requests: Sequence[DraftRequest]) -> list[tuple[DraftRequest, PagedSession]]:
        """Those whose states are all there, and whose rows of older text fit into one chunk together."""
        sessions, limits = self._running[1], self._round.limits
        ready: list[tuple[DraftRequest, PagedSession]] = []
        late: list[tuple[PagedSession, int]] = []
        room = limits.chunk
        for request in sorted(requests, key=lambda request: sessions[request.session].pending):
            session = sessions[request.session]
            before = max(0, session.pending - limits.text_rows)
            if session.is_complete and not session.is_full and before <= room:
                room -= before
                ready.append((request, session))
                if before:
                    late.append((session, before))
        self._compute(late)
        return ready

    def _compute(self, batch: Sequence[tuple[PagedSession, int]]) -> None:
        """Compute the next rows of text of each session, as many as beside it."""
        taken = [(session, self._take(session, rows)) for session, rows in batch if rows]
        parts = [part for _, part in taken if part is not None]
        if parts:
            self._round.compute_text([item for item, _ in parts], [each for _, states in parts for each in states])
        for session, _ in batch:
            self._settle(session)

    def _draft(self, ready: Sequence[tuple[DraftRequest, PagedSession]]) -> tuple[list[int], DraftHandle | None]:
        numbers: list[int] = []
        items: list[RoundItem] = []
        features: list[torch.Tensor] = []
        filtered = False
        for request, session in ready:
            nodes = min(request.max_nodes, self.max_nodes) - 1
            depth = min(request.max_depth, self.max_depth, nodes)
            taken = self._take(session, session.pending, nodes, depth)
            self._settle(session)
            if taken is None:
                continue
            item, states = taken
            items.append(item)
            numbers.append(session.number)
            features.extend(states)
            filtered |= session.is_filtered
        return numbers, self._round.begin(items, features, filtered=filtered) if items else None

    def _take(
        self, session: PagedSession, rows: int, max_nodes: int = 0, max_depth: int = 0
    ) -> tuple[RoundItem, list[torch.Tensor]] | None:
        draft, sessions, _ = self._running
        taken = sessions.take_rows(draft, session, rows, max_nodes, max_depth)
        if taken is None:
            _log.debug(
                "request of %d tokens outgrew what the head holds: it goes on without trees", len(session.tokens)
            )
        return taken

    def _settle(self, session: PagedSession) -> None:
        if not session.pending:
            self._behind.pop(session.number, None)

    def _start(self, weights: EagleWeights) -> None:
        """Begin anew with a head of these weights, without sessions."""
        if self._started is not None:
            self._round.finish()
            self._round.wait_for_text()
        self._started = self._followed = None
        gc.collect()  # the graphs and pages of the one before
        config = self.config
        limits = DraftLimits(
            max_depth=self.max_depth,
            width=min(config.top_k, len(weights.head)),
            max_tokens=config.max_tokens,
            max_context=config.max_context,
            max_sessions=config.max_sessions,
            chunk=config.chunk or _CHUNK,
        )
        ops = draft_ops.kernels() if weights.head.is_cuda else draft_ops.twins()
        try:
            draft = DraftRound(EagleForward(weights, ops), limits, rope=self._rope, ops=ops, progress=True)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        if weights.head.is_cuda:
            _log.info("%s drafts on %s: %s", self.name, weights.head.device, draft.memory)
        self._started = draft, PagedSessions(limits), DraftVocabulary(weights.ids, len(weights.head))

    @property
    def _running(self) -> tuple[DraftRound, PagedSessions, DraftVocabulary]:
        assert self._started is not None
        return self._started

    @property
    def _round(self) -> DraftRound:
        return self._running[0]
