"""EAGLE proposer: a head of one layer drafts from the target's own states.

EAGLE-1 heads (arXiv 2401.15077) with the dynamic tree of EAGLE-2 (arXiv 2406.16858, section 4): nodes are expanded by
the cumulative logarithm of their probability, and at the end the best of all are kept (`expansion`). EAGLE-3 heads
draft in the same way (`eagle3`). At temperatures above 0 a head draws the request's own noise (`coupling`).

A round computes the rows whose states came since the last round, for all sessions at once, always with the target's
states: what a tree's rows left behind in their place is overwritten. Then it makes one pass a level. States of long
prompts are worked off between rounds, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from draft_service.heads.eagle import EagleHead
from draft_service.heads.loading import load_eagle
from draft_service.proposers.base import (
    DraftRequest,
    Opening,
    Proposer,
    ProposerOptions,
    SessionRefusedError,
    Target,
)
from draft_service.proposers.checkpoint_folder import (
    check_states,
    check_tokenizer,
    folder_and_config,
    refusing,
    target_facts,
    warm_up_with_states,
)
from draft_service.proposers.coupling import Coupling
from draft_service.proposers.draft_cache import DraftSession
from draft_service.proposers.draft_rows import Branch
from draft_service.proposers.eagle_rows import EagleSession, GrowingTree, compute_nodes, compute_text
from draft_service.proposers.expansion import Expansion
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.boundaries import boundaries_of
from slipstream_kernels.models.config import CheckpointError
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Limits, and what the checkpoint leaves open.

    max_depth, top_k, max_nodes: as SGLang's num_steps, topk and num_draft_tokens; max_nodes 0 stands for 8, or for
    max_depth + 1 where top_k is 1. target: folder that lends embedding, scoring rows and tokenizer. boundaries: those
    to read, joined by dashes, in place of the checkpoint's. token_map: file of the target ids that a head scores which
    has no vocabulary of its own. chunk: rows of a pass over text. max_tokens: of all sessions together, as they open.
    """

    max_depth: int = 5
    top_k: int = 4
    max_nodes: int = 0
    target: str = ""
    boundaries: str = ""
    token_map: str = ""
    chunk: int = 128
    max_tokens: int = 262_144

    def __post_init__(self) -> None:
        if not (1 <= self.max_depth < MAX_ROWS and 1 <= self.top_k <= 16 and 2 <= self.rows <= MAX_ROWS):
            raise ValueError("max_depth must be 1 to 63, top_k 1 to 16, max_nodes 2 to 64")
        if not all(part.isdecimal() for part in self.boundaries.split("-") if self.boundaries):
            raise ValueError(f"boundaries are {self.boundaries!r}, must be numbers joined by dashes")
        if self.chunk < 1:
            raise ValueError("chunk must be at least 1")

    @property
    def rows(self) -> int:
        """Rows of the largest tree, the root included."""
        return self.max_nodes or (self.max_depth + 1 if self.top_k == 1 else 8)

    @property
    def target_folder(self) -> Path | None:
        return Path(self.target) if self.target else None

    @property
    def map_file(self) -> Path | None:
        return Path(self.token_map) if self.token_map else None


Config = TypeVar("Config", bound=EagleConfig)


class EagleProposer(Proposer):
    """Drafts with an EAGLE head, or with MTP layers, on the CPU."""

    def __init__(
        self,
        name: str,
        head: EagleHead,
        config: EagleConfig,
        tokenizer_fingerprint: str = "",
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.config = config
        self.max_nodes = config.rows
        self.max_depth = min(config.max_depth, config.rows - 1)
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.vocab_size = head.vocabulary.target_size
        self._head = head
        self._width = min(config.top_k, len(head.vocabulary.head))
        self._coupling = Coupling(self.vocab_size, eos_token_ids)
        self._sessions: dict[int, EagleSession] = {}
        self._behind: dict[int, None] = {}

    def bind(self, target: Target) -> None:
        check_tokenizer(self.tokenizer_fingerprint, target)
        check_states(self._head.config.target_hidden_size, target)
        self.feature_boundaries = self._boundaries(target.num_layers)
        self._coupling.limit_vocabulary(target.vocab_size)
        self.warm_up()

    def warm_up(self) -> None:
        """Compile every kernel that a round uses. Only while no session is open."""
        warm_up_with_states(self, self._head.num_states * self._head.config.target_hidden_size)

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
        room = self.config.chunk
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
        room = self.config.chunk
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

    def _boundaries(self, num_layers: int) -> tuple[int, ...]:
        """Those that the operator or the checkpoint names, else those that the family reads by default."""
        if self.config.boundaries:
            chosen = tuple(int(part) for part in self.config.boundaries.split("-"))
        elif self._head.family == "eagle3":
            chosen = self._head.config.boundaries or (2, num_layers // 2, num_layers - 3)
        else:
            chosen = (num_layers + 1,)
        known = boundaries_of(num_layers)
        if len(chosen) != self._head.num_states or len(set(chosen)) < len(chosen) or not set(chosen) <= set(known):
            raise FailedPreconditionError(
                f"boundaries are {list(chosen)}; it reads {self._head.num_states} different ones of 0 to {known[-1]}: "
                "name them, as boundaries=2-4-5"
            )
        return chosen


def create_with(
    options: ProposerOptions, default: Config, load: Callable[[Path, Config], tuple[EagleHead, Path | None]]
) -> EagleProposer:
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
    proposer = EagleProposer(options.name, head, config, facts.tokenizer, eos)
    proposer.target_folder = target
    proposer.warm_up()
    return proposer


def create_for(family: str, options: ProposerOptions) -> EagleProposer:
    """A proposer with an EAGLE head of that family."""

    def load(folder: Path, config: EagleConfig) -> tuple[EagleHead, Path | None]:
        head = load_eagle(folder, config.target_folder, config.map_file)
        if head.family != family:
            raise CheckpointError(f"{folder} holds an {head.family} head, no {family} head")
        return head, config.target_folder

    return create_with(options, EagleConfig(), load)


def create(options: ProposerOptions) -> EagleProposer:
    """Factory. The argument is `DIR[:KEY=VALUE...]`."""
    return create_for("eagle", options)
