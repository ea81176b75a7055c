"""What proposers share that draft from one state of the target: the one that predicted the newest token.

They keep no keys and values and have no text to work off, so a request costs nothing until it wants a tree, and gets
its first one with its first token, whatever was cached.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from draft_service.proposers.base import (
    CPU,
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
from draft_service.proposers.expansion import Expansion, usual_rows
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.boundaries import boundaries_of
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastStateConfig:
    """Limits, and what the checkpoint leaves open.

    max_depth, top_k, max_nodes: as SGLang's num_steps, topk and num_draft_tokens. max_depth 0, or more than the
    checkpoint can, stands for what it can; max_nodes 0 for `usual_rows`. target: folder that lends the tokenizer, and
    scoring rows where there are none. token_map: file of the target ids that are scored. boundaries: the one to read,
    in place of that behind the final norm.
    """

    max_depth: int = 0
    top_k: int = 4
    max_nodes: int = 0
    target: str = ""
    token_map: str = ""
    boundaries: str = ""

    def __post_init__(self) -> None:
        if not (0 <= self.max_depth < MAX_ROWS and 1 <= self.top_k <= 16):
            raise ValueError("max_depth must be 1 to 63, top_k 1 to 16")
        if self.max_nodes not in (0, *range(2, MAX_ROWS + 1)):
            raise ValueError("max_nodes must be 2 to 64")
        if self.boundaries and not self.boundaries.isdecimal():
            raise ValueError(f"boundaries are {self.boundaries!r}, must be one number")


class LastStateHead(Protocol):
    """Weights that draft from one state. Their length is that of the longest path."""

    hidden_size: int
    """Width of the target's states."""
    target_size: int
    """Entries of the target's vocabulary."""
    entries: int
    """How many of them are scored."""

    def __len__(self) -> int: ...


Head = TypeVar("Head", bound=LastStateHead)


@dataclass(slots=True)
class _Session:
    """A request, and the newest of the target's states: float32 [1, hidden], of `position`."""

    draft: DraftSession
    state: torch.Tensor | None = None
    position: int = -1

    @property
    def is_complete(self) -> bool:
        """Whether the state is the one that predicted the newest token."""
        return self.state is not None and self.position == len(self.draft.tokens) - 2


class LastStateProposer(Proposer, Generic[Head]):
    """Drafts on the CPU."""

    trained_on_states = True
    expanded: int | None = None
    """Nodes expanded a level; None: as many as a node has children."""

    def __init__(
        self,
        name: str,
        head: Head,
        config: LastStateConfig,
        tokenizer_fingerprint: str = "",
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        depth = min(config.max_depth or len(head), len(head), MAX_ROWS - 1)
        self.name = name
        self.config = config
        self.max_nodes = config.max_nodes or usual_rows(depth, config.top_k)
        self.max_depth = min(depth, self.max_nodes - 1)
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.vocab_size = head.target_size
        self._head = head
        self._width = min(config.top_k, head.entries)
        self._coupling = Coupling(self.vocab_size, eos_token_ids)
        self._sessions: dict[int, _Session] = {}

    def bind(self, target: Target) -> None:
        check_tokenizer(self.tokenizer_fingerprint, target)
        check_states(self._head.hidden_size, target)
        known = boundaries_of(target.num_layers)
        boundary = int(self.config.boundaries or known[-1])
        if boundary not in known:
            raise FailedPreconditionError(f"boundaries are {boundary}, must be one of 0 to {known[-1]}")
        self.feature_boundaries = (boundary,)
        self._coupling.limit_vocabulary(target.vocab_size)
        self.warm_up()

    def warm_up(self) -> None:
        """Compile every kernel that a round uses. Only while no session is open."""
        warm_up_with_states(self, self._head.hidden_size)

    def open(self, session: int, opening: Opening) -> None:
        tokens = list(opening.token_ids)
        if max(tokens) >= self.vocab_size:
            raise SessionRefusedError(f"token {max(tokens)} is outside the heads' vocabulary")
        self._sessions[session] = _Session(DraftSession(session, tokens, opening.prompt_length, opening.sampling))
        self._coupling.open(session, tokens, opening.prompt_length, opening.sampling)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        if max(token_ids) >= self.vocab_size:
            raise ValueError(f"token {max(token_ids)} is outside the heads' vocabulary")
        self._sessions[session].draft.tokens.extend(token_ids)
        self._coupling.commit(session, token_ids)

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        state = self._sessions[session]
        state.state, state.position = features[-1:].float(), first_position + len(features) - 1

    def close(self, session: int) -> None:
        self._sessions.pop(session, None)
        self._coupling.close(session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        branches: dict[int, Branch] = {}
        states: list[torch.Tensor] = []
        for request in requests:
            session = self._sessions[request.session]
            if session.state is not None and session.is_complete:
                budget = min(request.max_nodes, self.max_nodes) - 1
                expansion = Expansion(
                    width=self.expanded or self._width, budget=budget, max_depth=min(request.max_depth, self.max_depth)
                )
                branches[request.session] = Branch(session.draft, expansion)
                states.append(session.state)
        if branches:
            self._grow(list(branches.values()), torch.cat(states))
        return [
            branches[request.session].expansion.tree() if request.session in branches else None for request in requests
        ]

    @abstractmethod
    def _grow(self, branches: Sequence[Branch], states: torch.Tensor) -> None:
        """Expand every branch, until nothing is left to expand, from its state: float32 [branches, hidden]."""


def create_with(
    options: ProposerOptions,
    default: LastStateConfig,
    load: Callable[[Path, Path | None, Path | None], Head],
    make: Callable[[str, Head, LastStateConfig, str, Sequence[int]], LastStateProposer[Head]],
) -> LastStateProposer[Head]:
    """A proposer whose argument is `DIR[:KEY=VALUE...]`, the keys being fields of LastStateConfig or their aliases.

    load: takes the folder, the target's folder and the file of a token map; may raise CheckpointError.
    """
    folder, config = folder_and_config(options, default)
    target = Path(config.target) if config.target else None
    with refusing(options):
        head = load(folder, target, Path(config.token_map) if config.token_map else None)
        tokenizer, eos = target_facts(target)
    if options.device != CPU:
        _log.warning("%s drafts on the CPU: no kernels of a GPU compute it", options.name)
    torch.set_num_threads(options.threads)
    proposer = make(options.name, head, config, tokenizer, eos)
    proposer.target_folder = target
    proposer.warm_up()
    return proposer
