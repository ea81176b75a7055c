"""Medusa heads and MLP speculators on a GPU: a round of all sessions is one CUDA graph.

What is drafted is what the CPU drafts by `medusa` and `mlp_speculator`, but for the rounding of bfloat16, and for
Medusa's trees of requests with penalties: of those as many nodes a level are expanded as a node has children, and not
all. A round starts from the newest state of each session, and makes the trees without waiting for the host.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draft_service.proposers.base import DraftRequest, Opening, Sampling, SessionRefusedError
from draft_service.proposers.gpu_common.draft_futures import BatchedDraftFuture
from draft_service.proposers.gpu_common.sampling_slots import (
    DraftVocabulary,
    count_output,
    is_filtered,
    is_penalised,
    set_rules,
)
from draft_service.proposers.last_hidden_state.base import Head, LastHiddenStateBase, LastHiddenStateConfig
from draft_service.proposers.last_hidden_state.gpu_weights import HiddenStateWeights, state_weights
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.round.draft_handle import DraftHandle
from slipstream_kernels.models.gpu.draft.round.hidden_state_plan import HiddenStateItem, HiddenStateLimits
from slipstream_kernels.models.gpu.draft.round.hidden_state_round import HiddenStateRound
from slipstream_kernels.token_tree import TokenTree

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Session:
    """A request, and the newest of the target's states: bfloat16 [1, hidden], of `position`.

    line: of the tables. length: of its text, which ends with `newest`.
    """

    line: int
    sampling: Sampling
    length: int
    newest: int
    state: torch.Tensor | None = None
    position: int = -1

    @property
    def ready(self) -> torch.Tensor | None:
        """The state that predicted the newest token, if it has come."""
        return self.state if self.position == self.length - 2 else None


@dataclass(slots=True)
class _Running:
    """Weights at work: what the tables hold of each session."""

    draft: HiddenStateRound
    vocabulary: DraftVocabulary
    free_lines: list[int]
    sessions: dict[int, _Session]


class GpuLastHiddenStateProposer(LastHiddenStateBase[Head]):
    """Drafts from one state a session on one device; on `cpu` with the kernels' twins, slowly."""

    shares_thread = True

    def __init__(
        self,
        name: str,
        head: Head,
        config: LastHiddenStateConfig,
        device: torch.device | str,
        tokenizer_fingerprint: str = "",
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        """Raises NoGpuFormError where a GPU cannot draft with it, CheckpointError where it has no room for it."""
        super().__init__(name, head, config, tokenizer_fingerprint)
        self._eos = tuple(eos_token_ids)
        self._weights = state_weights(head, self.max_depth, torch.device(device))
        self.device = self.state_device = str(device)
        self._started: _Running | None = None
        self._start(self._weights)

    def limit_vocabulary(self, size: int) -> None:
        weights, running = self._weights.limited(size), self._running
        assert not running.sessions
        if weights.entries != running.draft.forward.entries:
            self._start(weights)

    def open(self, session: int, opening: Opening) -> None:
        running, tokens = self._running, opening.token_ids
        if max(tokens) >= self.vocab_size:
            raise SessionRefusedError(f"token {max(tokens)} is outside the heads' vocabulary")
        if not running.free_lines:
            raise SessionRefusedError(f"{self.config.max_sessions} other requests are open, the most that can be")
        line = running.free_lines.pop()
        running.sessions[session] = _Session(line, opening.sampling, len(tokens), tokens[-1])
        with running.draft.change_tables():
            set_rules(
                running.draft.tables,
                line,
                running.vocabulary,
                opening.sampling,
                tokens,
                opening.prompt_length,
                self._eos,
            )

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        if max(token_ids) >= self.vocab_size:
            raise ValueError(f"token {max(token_ids)} is outside the heads' vocabulary")
        running = self._running
        state = running.sessions[session]
        state.length += len(token_ids)
        state.newest = token_ids[-1]
        if is_penalised(state.sampling):
            with running.draft.change_tables():
                count_output(running.draft.tables, state.line, running.vocabulary, token_ids)

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        state = self._running.sessions[session]
        state.state, state.position = features[-1:], first_position + len(features) - 1

    def close(self, session: int) -> None:
        running = self._running
        state = running.sessions.pop(session, None)
        if state is not None:
            running.free_lines.append(state.line)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return self.begin(requests).result()

    def begin(self, requests: Sequence[DraftRequest]) -> BatchedDraftFuture[tuple[DraftRequest, _Session]]:
        running = self._running
        asked = [(request, running.sessions[request.session]) for request in requests]
        ready = [(request, session) for request, session in asked if session.ready is not None]
        return BatchedDraftFuture(requests, ready, running.draft.max_sessions, self._draft)

    def shut_down(self) -> None:
        self._started = None

    def _draft(self, ready: Sequence[tuple[DraftRequest, _Session]]) -> tuple[list[int], DraftHandle | None]:
        items: list[HiddenStateItem] = []
        states: list[torch.Tensor] = []
        for request, session in ready:
            nodes = min(request.max_nodes, self.max_nodes) - 1
            depth = min(request.max_depth, self.max_depth, nodes)
            items.append(HiddenStateItem(session.line, session.length - 1, session.newest, nodes, depth))
            assert session.state is not None
            states.append(session.state)
        if not items:
            return [], None
        handle = self._running.draft.begin(
            items,
            states,
            filtered=any(is_filtered(session.sampling) for _, session in ready),
            penalised=any(is_penalised(session.sampling) for _, session in ready),
        )
        return [request.session for request, _ in ready], handle

    def _start(self, weights: HiddenStateWeights) -> None:
        """Begin anew with these weights, without sessions."""
        if self._started is not None:
            self._started = None
            gc.collect()  # its graphs
        try:
            limits = HiddenStateLimits(
                max_depth=self.max_depth,
                width=min(self.config.top_k, weights.entries),
                max_sessions=self.config.max_sessions,
            )
            cuda = torch.device(self.state_device).type == "cuda"
            ops = draft_ops.kernels() if cuda else draft_ops.twins()
            draft = HiddenStateRound(weights.forward(ops), limits, ops=ops, progress=True)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        if cuda:
            _log.info("%s drafts on %s: %s", self.name, self.state_device, draft.memory)
        self._started = _Running(
            draft, DraftVocabulary(weights.ids, weights.entries), list(range(limits.max_sessions - 1, -1, -1)), {}
        )

    @property
    def _running(self) -> _Running:
        assert self._started is not None
        return self._started
