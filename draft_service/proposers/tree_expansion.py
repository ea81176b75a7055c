"""Growing a token tree level by level under a row budget, and keeping the best of it.

EAGLE-2 (arXiv 2406.16858, section 4): a node's score is the logarithm of its path's estimated probability of being
accepted; at each level the best nodes are expanded, and at the end the best of all nodes ever seen are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_kernels.token_tree import TokenTree

_ROWS = 8
"""Of the largest tree, where nothing else is said and no path is longer."""


def usual_rows(max_depth: int, top_k: int) -> int:
    """Rows of the largest tree of so long paths where nobody says how many: a chain's, or at least 8."""
    return max_depth + 1 if top_k == 1 else max(_ROWS, max_depth + 1)


class Expansion:
    """One session's tree while it grows.

    Candidates are numbered as they are added, parents before children. `frontier` holds those to be expanded next,
    ascending; at the beginning it is [-1], the root.
    """

    __slots__ = ("_log_probs", "_parents", "_scores", "_tokens", "_width", "budget", "depth", "frontier", "max_depth")

    def __init__(self, *, width: int, budget: int, max_depth: int) -> None:
        """`width` nodes are expanded a level, `budget` nodes (the root not counted) are kept in the end."""
        self._width = width
        self.budget = budget
        self.max_depth = max_depth
        self.depth = 0
        self.frontier: list[int] = [-1]
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._log_probs: list[float] = []

    def token(self, candidate: int) -> int:
        return self._tokens[candidate]

    def path(self, candidate: int) -> list[int]:
        """Candidates from the root's child down to `candidate`."""
        path: list[int] = []
        while candidate >= 0:
            path.append(candidate)
            candidate = self._parents[candidate]
        path.reverse()
        return path

    def extend(
        self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], log_probs: Sequence[Sequence[float]]
    ) -> None:
        """Add children to the frontier's nodes, in its order, and choose the next frontier.

        tokens, scores, log_probs: one row a frontier node, one entry a child. A score is the logarithm of the
        estimated probability that the child is right given that its parent is; log_probs are the draft's own.
        """
        added: list[int] = []
        for parent, ids, gains, logs in zip(self.frontier, tokens, scores, log_probs, strict=True):
            base = 0.0 if parent < 0 else self._scores[parent]
            path = 0.0 if parent < 0 else self._log_probs[parent]
            for token, gain, log in zip(ids, gains, logs, strict=True):
                added.append(len(self._tokens))
                self._tokens.append(token)
                self._parents.append(parent)
                # A child never beats its parent, whatever rounding did; so the kept set is closed under parents.
                self._scores.append(base + min(gain, 0.0))
                self._log_probs.append(path + min(log, 0.0))
        self.depth += 1
        self.frontier = sorted(self._best(added, self._width)) if self.depth < self.max_depth else []
        if self.frontier and len(self._tokens) > self.budget:
            kept = set(self._best(range(len(self._tokens)), self.budget))
            # Children of a node that is not kept would not be kept either.
            self.frontier = [node for node in self.frontier if node in kept]

    def tree(self) -> TokenTree:
        """The best `budget` candidates, in the order they were added."""
        kept = sorted(self._best(range(len(self._tokens)), self.budget))
        place = {node: index for index, node in enumerate(kept)} | {-1: -1}
        return TokenTree(
            tuple(self._tokens[node] for node in kept),
            tuple(place[self._parents[node]] for node in kept),
            tuple(self._log_probs[node] for node in kept),
        )

    def _best(self, candidates: Sequence[int], number: int) -> list[int]:
        """The highest scores, ties by the lower number."""
        if len(candidates) <= number:
            return list(candidates)
        return sorted(candidates, key=lambda node: (-self._scores[node], node))[:number]
