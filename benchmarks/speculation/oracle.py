"""A proposer that costs what another one costs, and is right as often as it is told to be.

    --proposers tree=benchmarks.speculation.oracle:create:PLAN:8:eagle3:DIR:num_steps=5:topk=8:num_draft_tokens=64

The other one drafts as ever. Each of its trees is then overwritten by one of as many nodes: the best tree for a drafter
that is right as often as the plan says (`OraclePlan`), with the target's own continuation, recorded beforehand, where
such a drafter would have it. Whether it is right at a position is a matter of the text alone, whatever the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lib.continuations import continuation_key, read_continuations
from benchmarks.speculation.acceptance_profile import OraclePlan, Profile, Shape, best_shape, placed
from benchmarks.speculation.overwritten_trees import OverwrittenTrees, PromisedTrees
from draft_service.proposers.base import (
    DraftFuture,
    DraftRequest,
    FollowRequest,
    Opening,
    Proposer,
    ProposerOptions,
    Target,
)
from draft_service.proposers.registry import ProposerSpec, find_factory
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class _Session:
    """What follows the prompt as far as it is recorded, which rank is right where, and the tokens decided so far."""

    truth: tuple[int, ...]
    ranks: list[int]
    at: int


@dataclass(frozen=True, slots=True)
class _Overwriting:
    """What the other proposer has begun."""

    oracle: Oracle
    requests: Sequence[DraftRequest]
    begun: DraftFuture

    def wait(self, seconds: float) -> bool:
        return self.begun.wait(seconds)

    def device_trees(self) -> list[TokenTree] | None:
        drafted = self.begun.device_trees()
        there = [tree for tree in drafted or () if isinstance(tree, DeviceTree)]
        if drafted is None or len(there) < len(drafted):
            return None
        trees = [self.oracle.tree(request, tree.most_nodes) for request, tree in zip(self.requests, there, strict=True)]
        overwritten = OverwrittenTrees(there, trees)
        return [DeviceTree(overwritten, row, len(tree), tree.depth) for row, tree in enumerate(trees)]

    def result(self) -> list[TokenTree | None]:
        return self.oracle.overwritten(self.requests, self.begun.result())


class Oracle(Proposer):
    """See the module."""

    def __init__(self, name: str, inner: Proposer, plan: OraclePlan, width: int) -> None:
        """width: children of a node of the trees."""
        self.name = name
        self._inner = inner
        self._plan, self._profile, self._width = plan, Profile(plan.first), width
        self._sessions: dict[int, _Session] = {}
        self._continuations: dict[str, tuple[int, ...]] = {}
        self._decoys: tuple[int, ...] = ()
        self._shape = lru_cache(maxsize=None)(self._best)
        self._take_facts()

    def bind(self, target: Target) -> None:
        self._inner.bind(target)
        self._take_facts()
        self._continuations = read_continuations(Path(self._plan.continuations))
        self._decoys = tuple(range(0, target.vocab_size, target.vocab_size // MAX_ROWS))[:MAX_ROWS]

    def open(self, session: int, opening: Opening) -> None:
        self._inner.open(session, opening)
        prompt = opening.token_ids[: opening.prompt_length]
        key = continuation_key(prompt, opening.sampling.temperature, opening.sampling.seed)
        truth = self._continuations.get(key, ())
        at = len(opening.token_ids) - opening.prompt_length
        self._sessions[session] = _Session(truth, self._profile.ranks(key, len(truth)), at)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._inner.commit(session, token_ids)
        self._sessions[session].at += len(token_ids)

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        self._inner.take_features(session, first_position, features)

    def close(self, session: int) -> None:
        self._inner.close(session)
        self._sessions.pop(session, None)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return self.begin(requests).result()

    def begin(self, requests: Sequence[DraftRequest]) -> _Overwriting:
        return _Overwriting(self, requests, self._inner.begin(requests))

    def follow(self, requests: Sequence[FollowRequest], outcome: DevicePassResult) -> EnqueuedRound:
        enqueued = self._inner.follow(requests, outcome)
        asked = [request for request in requests if request.row in enqueued.trees]
        drafted = [enqueued.trees[request.row] for request in asked]

        def make(decided: list[list[int]]) -> OverwrittenTrees:
            trees = [
                self._tree(request.session, tree.most_nodes, request.max_depth, len(decided[request.row]))
                if request.session in self._sessions
                else TokenTree((), ())
                for request, tree in zip(asked, drafted, strict=True)
            ]
            return OverwrittenTrees(drafted, trees)

        promised = PromisedTrees(drafted, outcome.results, make)
        trees = {
            request.row: DeviceTree(promised, place, *promised.bounds[place]) for place, request in enumerate(asked)
        }
        return EnqueuedRound(enqueued.read, trees)

    def overwritten(
        self, requests: Sequence[DraftRequest], trees: Sequence[TokenTree | None]
    ) -> list[TokenTree | None]:
        """What stands for the other proposer's trees."""
        return [
            None if tree is None else self.tree(request, len(tree))
            for request, tree in zip(requests, trees, strict=True)
        ]

    def advance(self) -> bool:
        return self._inner.advance()

    def shut_down(self) -> None:
        self._inner.shut_down()

    def tree(self, request: DraftRequest, nodes: int) -> TokenTree:
        """What stands for a tree of so many nodes."""
        return self._tree(request.session, nodes, request.max_depth, 0)

    def _tree(self, number: int, nodes: int, max_depth: int, decided: int) -> TokenTree:
        """The same after so many more tokens than were told of."""
        session = self._sessions[number]
        depth = min(max_depth, self.max_depth)
        shape = self._shape(nodes, depth)
        at = session.at + decided
        ahead = slice(at, at + depth)
        tokens = placed(shape, self._decoys, session.truth[ahead], session.ranks[ahead])
        return TokenTree(tokens, shape.parents, shape.log_probs)

    def _best(self, nodes: int, depth: int) -> Shape:
        return best_shape(self._profile, nodes=nodes, depth=depth, width=self._width)

    def _take_facts(self) -> None:
        self.max_nodes, self.max_depth = self._inner.max_nodes, self._inner.max_depth
        self.feature_boundaries = self._inner.feature_boundaries
        self.shares_thread, self.state_device = self._inner.shares_thread, self._inner.state_device
        self.tokenizer_fingerprint, self.vocab_size = self._inner.tokenizer_fingerprint, self._inner.vocab_size


def create(options: ProposerOptions) -> Oracle:
    """Factory. The argument is `PLAN:WIDTH:NAME[:ARGUMENT]`.

    That is the file of an `OraclePlan`, children of a node, and another proposer as on the command line.
    """
    plan, width, proposer = options.argument.split(":", 2)
    spec = ProposerSpec.parse(proposer)
    inner = find_factory(spec)(replace(options, name=spec.name, argument=spec.argument))
    return Oracle(options.name, inner, OraclePlan.read(Path(plan)), int(width))
