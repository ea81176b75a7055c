"""Proposers that draft on the CPU from one state of the target: the one that predicted the newest token."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from draft_service.proposers.base import CPU, DraftRequest, Opening, ProposerOptions, SessionRefusedError
from draft_service.proposers.checkpoint_folder import folder_and_config, refusing, target_facts
from draft_service.proposers.cpu_common.kv_cache import DraftSession
from draft_service.proposers.cpu_common.noise_coupling import Coupling
from draft_service.proposers.cpu_common.rows import Branch
from draft_service.proposers.last_hidden_state.base import Head, LastHiddenStateBase, LastHiddenStateConfig
from draft_service.proposers.tree_expansion import Expansion
from slipstream_kernels.token_tree import TokenTree

_log = logging.getLogger(__name__)


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


class LastHiddenStateProposer(LastHiddenStateBase[Head]):
    """Drafts on the CPU."""

    device = CPU

    expanded: int | None = None
    """Nodes expanded a level; None: as many as a node has children."""

    def __init__(
        self,
        name: str,
        head: Head,
        config: LastHiddenStateConfig,
        tokenizer_fingerprint: str = "",
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        super().__init__(name, head, config, tokenizer_fingerprint)
        self._head = head
        self._width = min(config.top_k, head.entries)
        self._coupling = Coupling(self.vocab_size, eos_token_ids)
        self._sessions: dict[int, _Session] = {}

    def limit_vocabulary(self, size: int) -> None:
        self._coupling.limit_vocabulary(size)

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
    default: LastHiddenStateConfig,
    load: Callable[[Path, Path | None, Path | None], Head],
    make: Callable[[str, Head, LastHiddenStateConfig, str, Sequence[int]], LastHiddenStateProposer[Head]],
) -> LastHiddenStateBase[Head]:
    """A proposer whose argument is `DIR[:KEY=VALUE...]`, its keys fields of LastHiddenStateConfig or their aliases.

    load: takes the folder, the target's folder and the file of a token map; may raise CheckpointError. make: what
    drafts on the CPU.
    """
    folder, config = folder_and_config(options, default)
    target = Path(config.target) if config.target else None
    with refusing(options):
        head = load(folder, target, Path(config.token_map) if config.token_map else None)
        tokenizer, eos = target_facts(target)
        torch.set_num_threads(options.threads)
        proposer = _on_gpu(options, head, config, tokenizer, eos) or make(options.name, head, config, tokenizer, eos)
    proposer.target_folder = target
    proposer.warm_up()
    return proposer


def _on_gpu(
    options: ProposerOptions, head: Head, config: LastHiddenStateConfig, tokenizer: str, eos: Sequence[int]
) -> LastHiddenStateBase[Head] | None:
    """The proposer on the GPU that was chosen; None for the CPU. Raises CheckpointError where it has no room."""
    if options.device == CPU:
        return None
    from draft_service.proposers.gpu_common.supported_shapes import NoGpuFormError
    from draft_service.proposers.last_hidden_state.gpu import GpuLastHiddenStateProposer

    try:
        return GpuLastHiddenStateProposer(options.name, head, config, options.device, tokenizer, eos)
    except NoGpuFormError as error:
        _log.warning("%s drafts on the CPU: %s", options.name, error)
    return None
