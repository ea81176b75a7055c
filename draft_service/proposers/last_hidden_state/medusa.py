"""Medusa proposer: heads on the target's last state, each of which guesses one of the next tokens (arXiv 2401.10774).

The heads do not see one another's guesses, so a path's probability is the product of its tokens' and the candidates
are all combinations of the heads' best tokens. Of those the likeliest are kept, by the heads' own probabilities and not
by a tree fixed beforehand. None is missed: expanding a node costs no pass, so every node that the budget may keep is
expanded. At temperatures above 0 each head draws the noise of its position (`noise_coupling`). The published typical
acceptance is not used; what is verified is the target's own sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draft_service.heads.medusa import MedusaHeads
from draft_service.heads.medusa_loading import load_medusa
from draft_service.proposers.base import ProposerOptions
from draft_service.proposers.cpu_common.rows import Branch
from draft_service.proposers.last_hidden_state.base import LastHiddenStateBase, LastHiddenStateConfig
from draft_service.proposers.last_hidden_state.cpu import LastHiddenStateProposer, create_with
from slipstream_kernels.token_tree import MAX_ROWS

DEFAULT = LastHiddenStateConfig(top_k=10)


class MedusaProposer(LastHiddenStateProposer[MedusaHeads]):
    """Drafts with Medusa heads."""

    expanded = MAX_ROWS

    def _grow(self, branches: Sequence[Branch], states: torch.Tensor) -> None:
        growing, head = list(range(len(branches))), 0
        while growing:
            logits = self._head.logits(head, states[growing]).numpy()
            self._coupling.extend_alike(logits, [branches[index] for index in growing], self._width)
            growing = [index for index in growing if branches[index].expansion.frontier]
            head += 1


def create(options: ProposerOptions) -> LastHiddenStateBase[MedusaHeads]:
    """Factory. The argument is `DIR[:KEY=VALUE...]`, its keys fields of LastHiddenStateConfig or their aliases."""
    return create_with(options, DEFAULT, load_medusa, MedusaProposer)
