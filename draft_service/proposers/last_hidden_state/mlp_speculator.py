"""MLP speculator proposer: a recurrent network of few layers on the target's last state (arXiv 2404.19124).

Each stage takes the state of the stage before and the token drafted there, and scores the next token. Trees grow as
EAGLE-2's (`tree_expansion`), up to the number of stages, in place of the published fixed numbers of candidates a stage.
At temperatures above 0 the stages draw the request's own noise (`noise_coupling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from draft_service.heads.mlp_speculator import MlpSpeculator
from draft_service.heads.mlp_speculator_loading import load_mlp_speculator
from draft_service.proposers.base import ProposerOptions
from draft_service.proposers.cpu_common.rows import Branch
from draft_service.proposers.last_hidden_state.base import LastHiddenStateBase, LastHiddenStateConfig
from draft_service.proposers.last_hidden_state.cpu import LastHiddenStateProposer, create_with

Growing = Sequence[tuple[Branch, Mapping[int, int]]]
"""Branches, and where among the rows of the stage the state of each node of the frontier is."""


class MlpSpeculatorProposer(LastHiddenStateProposer[MlpSpeculator]):
    """Drafts with an MLP speculator."""

    def _grow(self, branches: Sequence[Branch], states: torch.Tensor) -> None:
        newest = torch.tensor([branch.session.tokens[-1] for branch in branches])
        states = self._head.forward(0, states, newest)
        growing: Growing = [(branch, {-1: row}) for row, branch in enumerate(branches)]
        stage = 0
        while growing:
            logits = self._head.logits(stage, states).numpy()
            self._coupling.extend(logits, [branch for branch, _ in growing], self._width)
            growing = [each for each in growing if each[0].expansion.frontier]
            stage += 1
            if growing:
                states, growing = self._step(stage, states, growing)

    def _step(self, stage: int, states: torch.Tensor, growing: Growing) -> tuple[torch.Tensor, Growing]:
        """The frontiers' states, float32 [nodes, inner], from those of the frontiers before."""
        parents: list[int] = []
        tokens: list[int] = []
        grown: list[tuple[Branch, Mapping[int, int]]] = []
        for branch, rows in growing:
            expansion, places = branch.expansion, {}
            for node in expansion.frontier:
                path = expansion.path(node)
                places[node] = len(tokens)
                parents.append(rows[path[-2] if len(path) > 1 else -1])
                tokens.append(expansion.token(node))
            grown.append((branch, places))
        return self._head.forward(stage, states[parents], torch.tensor(tokens)), grown


def create(options: ProposerOptions) -> LastHiddenStateBase[MlpSpeculator]:
    """Factory. The argument is `DIR[:KEY=VALUE...]`, its keys fields of LastHiddenStateConfig or their aliases."""
    return create_with(options, LastHiddenStateConfig(), load_mlp_speculator, MlpSpeculatorProposer)
