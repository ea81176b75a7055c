"""Drafters of tests that prepare trees for the ways in which a step may end, good ones and bad ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slipstream.generation_types import FinishReason
from slipstream_kernels.token_tree import TokenTree
from support.request_mix import Expected
from support.verify_loop import OracleTrees
from verify_service.core.acceptance import VerifiedTree
from verify_service.core.draft_source import Committed, OutcomeTree
from verify_service.core.request import GenerationRequest, RequestKey

MOST = 16


class ForeseeingTrees(OracleTrees):
    """Drafts ahead. `right`: how often the end that will come is among those supposed.

    `ready` is how often trees are there in time. Of what it prepares much is nonsense: ends that no step has, trees of
    wrong tokens, the same end again with another tree.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        expected: Sequence[Expected],
        *,
        right: float,
        ready: float = 0.8,
        seed: int = 3,
    ) -> None:
        texts = {one.key: one.prompt_token_ids + tokens for one, (tokens, _, _) in zip(requests, expected, strict=True)}
        super().__init__(texts, 512, seed)
        self.right = right
        self.ready = ready
        self.under_way: dict[RequestKey, TokenTree | None] = {}
        self.limits: dict[RequestKey, tuple[int, int]] = {}
        self.handed_over: set[RequestKey] = set()
        self.ahead = self.hits = 0

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        behind = super().commit(commits)
        for committed in commits:
            begun = committed.key in self.handed_over
            assert begun or committed.tree is None
            self.under_way[committed.key] = committed.tree
            self.limits[committed.key] = committed.max_nodes - 1, committed.max_depth
            self.hits += committed.tree is not None
            if begun:
                self.budgets.pop(committed.key, None)
            self.handed_over.discard(committed.key)
        return behind

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        assert not self.handed_over.intersection(wanted)
        trees = super().collect(wanted)
        self.under_way.update(zip(wanted, trees, strict=True))
        return trees

    def end(self, key: RequestKey, reason: FinishReason, verified: Sequence[VerifiedTree] = ()) -> None:
        super().end(key, reason, verified)
        self.handed_over.discard(key)

    def propose(self, key: RequestKey, nodes: int, depth: int) -> TokenTree | None:
        return super().propose(key, min(nodes, 6), min(depth, 2))

    def drafts_ahead_only(self, keys: Sequence[RequestKey]) -> bool:
        assert all(key in self.tokens for key in keys)
        return True

    def wait_for_outcomes(self, keys: Sequence[RequestKey], seconds: float) -> bool:
        assert seconds >= 0
        return self.random.random() < self.ready

    def take_outcome_trees(self, keys: Sequence[RequestKey]) -> list[Sequence[OutcomeTree]]:
        self.ahead += 1
        self.handed_over.update(keys)
        return [self._prepare(key) for key in keys]

    def _prepare(self, key: RequestKey) -> list[OutcomeTree]:
        pick, tree = self.random, self.under_way.get(key)
        nodes, depth = self.limits.get(key, (0, 0))
        if nodes < 1 or depth < 1 or pick.random() < 0.1:
            return []
        prepared: list[OutcomeTree] = []
        truth = self._texts[key][len(self.tokens[key]) :]
        path: tuple[int, ...] = ()
        if tree is not None:
            accepted, _ = tree.walk(truth[0], [truth[level] if level < len(truth) else -1 for level in tree.depths])
            path = tuple(tree.token_ids[node] for node in accepted)
        if len(path) < len(truth):
            end = (path, truth[len(path)])
            if pick.random() < self.right:
                prepared.append(OutcomeTree(*end, self._after(key, [*path, end[1]], nodes, depth)))
            prepared.append(OutcomeTree(*end, self._chain(nodes, depth)))
        while len(prepared) < pick.randint(1, MOST):
            ways = [()] if tree is None else [(), *(tree.path(node) for node in range(len(tree)))]
            some = tuple(tree.token_ids[node] for node in pick.choice(ways)) if tree is not None else ()
            if pick.random() < 0.1:
                some = (*some, pick.randrange(512))
            prepared.append(OutcomeTree(some, pick.randrange(512), self._chain(nodes, depth)))
        if pick.random() < 0.5:
            pick.shuffle(prepared)
        return prepared

    def _after(self, key: RequestKey, tokens: list[int], nodes: int, depth: int) -> TokenTree:
        before = self.tokens[key]
        self.tokens[key] = [*before, *tokens]
        tree = self.propose(key, nodes, depth)
        self.tokens[key] = before
        return tree if tree is not None else TokenTree((), ())

    def _chain(self, nodes: int, depth: int) -> TokenTree:
        return TokenTree.chain([self.random.randrange(512) for _ in range(self.random.randint(0, min(nodes, depth)))])
