"""EAGLE proposer: a head of one layer drafts from the target's own states.

EAGLE-1 heads (arXiv 2401.15077) with the dynamic tree of EAGLE-2 (arXiv 2406.16858, section 4): nodes are expanded by
the cumulative logarithm of their probability, and at the end the best of all are kept (`tree_expansion`). EAGLE-3 heads
draft in the same way (`eagle3`). At temperatures above 0 a head draws the request's own noise (`noise_coupling`).

A round computes the rows whose states came since the last round, for all sessions at once, always with the target's
states: what a tree's rows left behind in their place is overwritten. Then it makes one pass a level. States of long
prompts are worked off between rounds, chunk by chunk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from draft_service.heads.eagle import EagleHead
from draft_service.heads.loading import load_eagle
from draft_service.proposers.base import CPU, DraftRequest, Opening, ProposerOptions, SessionRefusedError
from draft_service.proposers.checkpoint_folder import folder_and_config, refusing, target_facts
from draft_service.proposers.cpu_common.kv_cache import DraftSession
from draft_service.proposers.cpu_common.noise_coupling import Coupling
from draft_service.proposers.cpu_common.rows import Branch
from draft_service.proposers.eagle.base import EagleBase, EagleConfig
from draft_service.proposers.eagle.rows import EagleSession, GrowingTree, compute_nodes, compute_text
from draft_service.proposers.tree_expansion import Expansion
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.token_tree import TokenTree

_log = logging.getLogger(__name__)

_CHUNK = 128
"""Rows of a pass over text unless configured: what a CPU computes in the time of a few verify steps."""

Config = TypeVar("Config", bound=EagleConfig)


class EagleProposer(EagleBase):
    """Drafts with an EAGLE head, or with MTP layers, on the CPU."""

    device = CPU

    def __init__(
        self,
        name: str,
        head: EagleHead,
        config: EagleConfig,
        tokenizer_fingerprint: str = "",
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        super().__init__(name, head, config, tokenizer_fingerprint)
        self._head = head
        self._chunk = config.chunk or _CHUNK
        self._width = min(config.top_k, len(head.vocabulary.head))
        self._coupling = Coupling(self.vocab_size, eos_token_ids)
        self._sessions: dict[int, EagleSession] = {}
        self._behind: dict[int, None] = {}

    def limit_vocabulary(self, size: int) -> None:
        self._coupling.limit_vocabulary(size)

    def open(self, session: int, opening: Opening) -> None:
        tokens = list(opening.token_ids)
        if max(tokens) >= self.vocab_size:
            raise SessionRefusedError(f"token {max(tokens)} is outside the head's vocabulary")
        held = sum(len(other.draft.tokens) for other in self._sessions.values())
        if held + len(tokens) > self.config.max_tokens:
            raise SessionRefusedError(f"{held} tokens of other requests leave no room for {len(tokens)}")
        draft = DraftSession(session, tokens, opening.prompt_length, opening.sampling)
        self._sessions[session] = EagleSession(draft, self._head.new_cache(), opening.cached_length)
        self._coupling.open(session, tokens, opening.prompt_length, opening.sampling)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        if max(token_ids) >= self.vocab_size:
            raise ValueError(f"token {max(token_ids)} is outside the head's vocabulary")
        self._sessions[session].draft.tokens.extend(token_ids)
        self._coupling.commit(session, token_ids)

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        state = self._sessions[session]
        assert first_position == state.begin + state.cache.length + state.pending
        state.waiting.append(features)
        self._behind[session] = None

    def close(self, session: int) -> None:
        self._behind.pop(session, None)
        self._sessions.pop(session, None)
        self._coupling.close(session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        ready = self._ready(requests)
        late = [(session, session.pending) for _, session in ready if session.pending]
        if late:
            self._compute(late)
        trees = self._grow(ready) if ready else {}
        return [trees.get(request.session) for request in requests]

    def advance(self) -> bool:
        """Compute up to a chunk of rows of text."""
        batch: list[tuple[EagleSession, int]] = []
        room = self._chunk
        for number in self._behind:
            session = self._sessions[number]
            rows = min(room, session.pending)
            batch.append((session, rows))
            room -= rows
            if room == 0:
                break
        if batch:
            self._compute(batch)
        return bool(self._behind)

    def _ready(self, requests: Sequence[DraftRequest]) -> list[tuple[DraftRequest, EagleSession]]:
        """Those whose states are all there and whose rows fit into one chunk together, fewest rows first."""
        ready: list[tuple[DraftRequest, EagleSession]] = []
        room = self._chunk
        for request in sorted(requests, key=lambda request: self._sessions[request.session].pending):
            session = self._sessions[request.session]
            if session.is_complete and session.pending <= room:
                room -= session.pending
                ready.append((request, session))
        return ready

    def _compute(self, batch: Sequence[tuple[EagleSession, int]]) -> None:
        compute_text(self._head, batch)
        for session, _ in batch:
            if not session.pending:
                self._behind.pop(session.draft.number, None)

    def _grow(self, ready: Sequence[tuple[DraftRequest, EagleSession]]) -> dict[int, TokenTree]:
        trees: list[GrowingTree] = []
        for request, session in ready:
            assert session.last is not None
            expansion = Expansion(
                width=self._width,
                budget=min(request.max_nodes, self.max_nodes) - 1,
                max_depth=min(request.max_depth, self.max_depth),
            )
            trees.append(GrowingTree(session, Branch(session.draft, expansion), {-1: session.last}))
        growing, depth = trees, 0
        states = torch.cat([tree.outputs[-1] for tree in trees])
        while growing:
            logits = self._head.logits(states, depth).numpy()
            self._coupling.extend(logits, [tree.branch for tree in growing], self._width)
            growing = [tree for tree in growing if tree.branch.expansion.frontier]
            if growing:
                depth += 1
                states = compute_nodes(self._head, growing, depth)
        return {tree.session.draft.number: tree.branch.expansion.tree() for tree in trees}


def create_with(
    options: ProposerOptions, default: Config, load: Callable[[Path, Config], tuple[EagleHead, Path | None]]
) -> EagleBase:
    """A proposer whose argument is `DIR[:KEY=VALUE...]`, the keys being fields of `default` or their aliases.

    load: reads the head in a folder, and says which folder's model it is for, if one is at hand; may raise
    CheckpointError.
    """
    folder, config = folder_and_config(options, default)
    with refusing(options):
        head, target = load(folder, config)
        facts = target_facts(target)
        eos = head.config.eos_token_ids if target is None else facts.eos_token_ids
        torch.set_num_threads(options.threads)
        proposer = _placed(options, head, config, facts.tokenizer, eos)
    proposer.target_folder = target
    proposer.warm_up()
    return proposer


def _placed(
    options: ProposerOptions, head: EagleHead, config: EagleConfig, tokenizer: str, eos: Sequence[int]
) -> EagleBase:
    """The proposer on the device that was chosen, else on the CPU. Raises CheckpointError where it does not fit."""
    if options.device != "cpu":
        from draft_service.proposers.eagle.gpu import GpuEagleProposer
        from draft_service.proposers.gpu_common.supported_shapes import NoGpuFormError

        try:
            return GpuEagleProposer(options.name, head, config, options.device, tokenizer, eos)
        except NoGpuFormError as error:
            _log.warning("%s drafts on the CPU: %s", options.name, error)
            head.widen()
    return EagleProposer(options.name, head, config, tokenizer, eos)


def create_for(family: str, options: ProposerOptions) -> EagleBase:
    """A proposer with an EAGLE head of that family."""

    def load(folder: Path, config: EagleConfig) -> tuple[EagleHead, Path | None]:
        as_stored = options.device != CPU
        head = load_eagle(folder, config.target_folder, config.map_file, as_stored=as_stored)
        if head.family != family:
            raise CheckpointError(f"{folder} holds an {head.family} head, no {family} head")
        return head, config.target_folder

    return create_with(options, EagleConfig(), load)


def create(options: ProposerOptions) -> EagleBase:
    """Factory. The argument is `DIR[:KEY=VALUE...]`."""
    return create_for("eagle", options)
