"""A proposer that exists only in tests: it takes hidden states and leaves what it got in a folder.

    --proposer checker=support.state_checker:StateChecker:FOLDER

It wants the boundaries that FOLDER/boundaries.json lists, and proposes what follows in the texts of FOLDER/texts.json,
among decoys. A session that ends writes FOLDER/NUMBER.npz; `sessions_of` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import torch

from draft_service.proposers.base import DraftRequest, Opening, Proposer, ProposerOptions, Target
from slipstream_kernels.token_tree import TokenTree


@dataclass(slots=True)
class _Session:
    tokens: list[int]
    cached: int
    begun_with: int
    rows: list[torch.Tensor] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckedSession:
    """What one session was given: states of the positions from `first` on, bfloat16 [positions, any].

    It began with `begun_with` tokens; `steps` are the numbers of tokens that came since, by commit.
    """

    tokens: list[int]
    first: int
    begun_with: int
    states: torch.Tensor
    steps: list[int]


class StateChecker(Proposer):
    """See the module."""

    max_nodes, max_depth = 12, 6

    def __init__(self, options: ProposerOptions) -> None:
        self.name = options.name
        self.state_device = options.device
        self._folder = Path(options.argument)
        self.feature_boundaries = tuple(json.loads((self._folder / "boundaries.json").read_text()))
        self._sessions: dict[int, _Session] = {}
        self._written = len(list(self._folder.glob("*.npz")))
        self._vocabulary = self._hidden_size = 1
        self._random = Random(0)

    def bind(self, target: Target) -> None:
        self._vocabulary, self._hidden_size = target.vocab_size, target.hidden_size
        assert set(self.feature_boundaries) <= set(target.feature_boundaries)
        assert len(target.feature_boundaries) == target.num_layers + 2

    def open(self, session: int, opening: Opening) -> None:
        self._sessions[session] = _Session(list(opening.token_ids), opening.cached_length, len(opening.token_ids))

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._sessions[session].tokens += token_ids
        self._sessions[session].steps.append(len(token_ids))

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        kept = self._sessions[session]
        assert first_position == kept.cached + sum(map(len, kept.rows))
        assert features.shape[1] == len(self.feature_boundaries) * self._hidden_size
        kept.rows.append(features.cpu())

    def close(self, session: int) -> None:
        kept = self._sessions.pop(session)
        states = torch.cat(kept.rows) if kept.rows else torch.empty(0, 0, dtype=torch.bfloat16)
        number, self._written = self._written, self._written + 1
        partial = self._folder / f"{number}.part"
        with partial.open("wb") as file:
            np.savez(
                file,
                tokens=kept.tokens,
                first=kept.cached,
                begun_with=kept.begun_with,
                steps=np.array(kept.steps, np.int64),
                states=states.view(torch.uint16).numpy(),
            )
        partial.rename(self._folder / f"{number:04d}.npz")

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        texts = self._folder / "texts.json"
        known = json.loads(texts.read_text()) if texts.exists() else []
        return [self._tree(self._sessions[request.session].tokens, known, request) for request in requests]

    def _tree(self, tokens: list[int], known: list[list[int]], request: DraftRequest) -> TokenTree | None:
        """The continuation, each token of it behind a decoy."""
        text = next((text for text in known if text[: len(tokens)] == tokens), [])
        truth = text[len(tokens) :][: min(request.max_depth, (request.max_nodes - 1) // 2)]
        token_ids: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in truth[: self._random.randint(1, len(truth))] if truth else []:
            token_ids += [(token + 1) % self._vocabulary, token]
            parents += [parent, parent]
            parent = len(token_ids) - 1
        return TokenTree(tuple(token_ids), tuple(parents)) if truth else None


def sessions_of(folder: Path) -> list[CheckedSession]:
    """All that have ended, in the order in which they did."""
    sessions = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as data:
            states = torch.from_numpy(data["states"].copy()).view(torch.bfloat16)
            tokens, steps = data["tokens"].tolist(), data["steps"].tolist()
            sessions.append(CheckedSession(tokens, int(data["first"]), int(data["begun_with"]), states, steps))
    return sessions
