"""A proposer that knows neither seed nor temperature: what coupling is measured against.

    --draft greedy=benchmarks.proposers.uncoupled:create:draft-model:DIR

Drafts with another proposer, which is told that every request is greedy: its likeliest tokens, ranked by its own
probabilities, as drafters do that share no noise with the target. Trees keep their shape and their budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from draft_service.proposers.base import DraftRequest, Opening, Proposer, ProposerOptions, Sampling, Target
from draft_service.proposers.registry import ProposerSpec, find_factory
from slipstream_kernels.token_tree import TokenTree

if TYPE_CHECKING:
    import torch

GREEDY = Sampling(temperature=0.0)


class Uncoupled(Proposer):
    """Opens every session of another proposer as a greedy one."""

    def __init__(self, name: str, inner: Proposer) -> None:
        self.name = name
        self._inner = inner
        self._take_facts()

    def bind(self, target: Target) -> None:
        self._inner.bind(target)
        self._take_facts()

    def open(self, session: int, opening: Opening) -> None:
        self._inner.open(session, replace(opening, sampling=GREEDY))

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._inner.commit(session, token_ids)

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        self._inner.take_features(session, first_position, features)

    def close(self, session: int) -> None:
        self._inner.close(session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return self._inner.propose(requests)

    def advance(self) -> bool:
        return self._inner.advance()

    def shut_down(self) -> None:
        self._inner.shut_down()

    def _take_facts(self) -> None:
        self.max_nodes, self.max_depth = self._inner.max_nodes, self._inner.max_depth
        self.feature_boundaries = self._inner.feature_boundaries
        self.tokenizer_fingerprint, self.vocab_size = self._inner.tokenizer_fingerprint, self._inner.vocab_size


def create(options: ProposerOptions) -> Uncoupled:
    """Factory. The argument is another proposer as it is written on the command line."""
    spec = ProposerSpec.parse(options.argument)
    inner = find_factory(spec)(replace(options, name=spec.name, argument=spec.argument))
    return Uncoupled(options.name, inner)
