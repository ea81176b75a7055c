"""Token trees for a verify loop in this process: of a given size, random, or with the true continuation inside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from slipstream.generation_types import FinishReason
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.core.acceptance import VerifiedTree
from verify_service.core.draft_source import Committed, NoDrafts, RequestOpening
from verify_service.core.request import RequestKey

RECENT = 48
"""Tokens at the end of a text that most drafted tokens are drawn from: the model may repeat them."""
TOPOLOGIES = 256
DECOYS = 16

Case = tuple[tuple[int, ...], float, int]
"""What decides an output: prompt, temperature, seed."""


@dataclass(slots=True)
class _Request:
    opening: RequestOpening
    tokens: list[int]
    max_nodes: int = 0
    max_depth: int = 0


class LocalTrees(NoDrafts):
    """Base of the tree sources: keeps the tokens of each request and makes a tree whenever one is asked for."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._random = Random(seed)
        self._requests: dict[RequestKey, _Request] = {}

    def known(self, name: str) -> bool:
        return True

    def begin(self, opening: RequestOpening) -> bool:
        self._requests[opening.key] = _Request(opening, list(opening.token_ids))
        return True

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        for each in commits:
            request = self._requests[each.key]
            request.tokens.extend(each.token_ids)
            request.max_nodes, request.max_depth = each.max_nodes - 1, each.max_depth
        return ()

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return True

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        return [self._bounded(self._requests[key]) for key in wanted]

    def end(self, key: RequestKey, reason: FinishReason, verified: Sequence[VerifiedTree] = ()) -> None:
        del self._requests[key]

    def _bounded(self, request: _Request) -> TokenTree | None:
        tree = self._propose(request)
        if tree is not None and (len(tree) > request.max_nodes or tree.depth > request.max_depth):
            return tree.truncated(request.max_nodes, request.max_depth)
        return tree

    def _propose(self, request: _Request) -> TokenTree | None:
        raise NotImplementedError

    def _tokens(self, request: _Request, count: int) -> tuple[int, ...]:
        """Two in three from the end of the text, the others from the whole vocabulary."""
        drawn = self._random.choices(request.tokens[-RECENT:], k=count)
        for index in range(0, count, 3):
            drawn[index] = self._random.randrange(self._vocab_size)
        return tuple(drawn)


class TreesByName(NoDrafts):
    """Hands each request to the source whose name it gives as its proposer."""

    def __init__(self, sources: Mapping[str, LocalTrees]) -> None:
        self._sources = dict(sources)
        self._chosen: dict[RequestKey, LocalTrees] = {}

    def known(self, name: str) -> bool:
        return name in self._sources

    def begin(self, opening: RequestOpening) -> bool:
        source = self._chosen[opening.key] = self._sources[opening.proposer]
        return source.begin(opening)

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        for each in commits:
            self._chosen[each.key].commit((each,))
        return ()

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return True

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        return [self._chosen[key].collect((key,))[0] for key in wanted]

    def end(self, key: RequestKey, reason: FinishReason, verified: Sequence[VerifiedTree] = ()) -> None:
        self._chosen.pop(key).end(key, reason, verified)


class SizedTrees(LocalTrees):
    """Trees of random tokens, of exactly `rows` rows, root included, and at most `depth` deep. Made ahead."""

    def __init__(self, vocab_size: int, *, depth: int = 8, seed: int = 0) -> None:
        super().__init__(vocab_size, seed)
        self.rows = 1
        self._depth = depth
        self._pools: dict[int, list[TokenTree]] = {}
        self._next = 0

    def resize(self, rows: int) -> None:
        """Trees of `rows` rows from the next step on."""
        if rows not in self._pools:
            self._pools[rows] = [self._made(rows - 1) for _ in range(TOPOLOGIES)]
        self.rows = rows

    def _made(self, nodes: int) -> TokenTree:
        tokens = tuple(self._random.randrange(self._vocab_size) for _ in range(nodes))
        tree = TokenTree(tokens, topology(self._random, nodes, self._depth, 0.3))
        assert tree.depth <= self._depth  # found ahead, as where a drafter's tree is checked
        return tree

    def _propose(self, request: _Request) -> TokenTree | None:
        self._next += 1
        return self._pools[self.rows][self._next % TOPOLOGIES] if self.rows in self._pools else None


class RandomTrees(LocalTrees):
    """Irregular trees: chains, bushes and everything between, now and then none. Most are small, some are full."""

    def __init__(self, vocab_size: int, *, max_rows: int = MAX_ROWS, seed: int = 0) -> None:
        super().__init__(vocab_size, seed)
        pick = self._random
        sizes = [pick.choices((0, pick.randint(1, 6), pick.randint(7, 15), max_rows - 1), (1, 12, 5, 2))[0]
                 for _ in range(TOPOLOGIES)]  # fmt: skip
        self._topologies = [
            topology(pick, size, pick.randint(1, max_rows - 1), pick.choice((0.0, 0.5, 0.9, 1.0))) for size in sizes
        ]

    def _propose(self, request: _Request) -> TokenTree | None:
        parents = self._random.choice(self._topologies)
        return TokenTree(self._tokens(request, len(parents)), parents) if parents else None


class OracleTrees(LocalTrees):
    """Hides the true continuation of a request, to a random depth, among decoys that branch off it.

    `truths`: output tokens by prompt, temperature and seed.
    """

    def __init__(self, vocab_size: int, truths: Mapping[Case, Sequence[int]], *, seed: int = 0) -> None:
        super().__init__(vocab_size, seed)
        self._truths = truths

    def _propose(self, request: _Request) -> TokenTree | None:
        opening, pick = request.opening, self._random
        prompt = opening.token_ids[: opening.prompt_length]
        assert opening.sampling.seed is not None
        known = self._truths[prompt, opening.sampling.temperature, opening.sampling.seed]
        at = len(request.tokens) - opening.prompt_length
        deepest = min(request.max_nodes, request.max_depth, len(known) - at)
        if deepest < 1:
            return None
        truth = known[at : at + pick.choice((deepest, pick.randint(1, deepest)))]
        return self._hidden(request, truth, pick.randint(0, min(DECOYS, request.max_nodes - len(truth))))

    def _hidden(self, request: _Request, truth: Sequence[int], decoys: int) -> TokenTree:
        """The path of `truth` and `decoys` other nodes in random order; no decoy stands for a true token."""
        pick = self._random
        true = [True] * len(truth) + [False] * decoys
        pick.shuffle(true)
        drawn = iter(self._tokens(request, decoys))
        tokens: list[int] = []
        parents: list[int] = []
        path = [-1]
        for node, on_path in enumerate(true):
            if on_path:
                tokens.append(truth[len(path) - 1])
                parents.append(path[-1])
                path.append(node)
                continue
            parent, token = pick.randint(-1, node - 1), next(drawn)
            taken = truth[path.index(parent)] if parent in path and path.index(parent) < len(truth) else -1
            tokens.append(token if token != taken else (token + 1) % self._vocab_size)
            parents.append(parent)
        return TokenTree(tuple(tokens), tuple(parents))


def topology(pick: Random, nodes: int, depth: int, chaining: float) -> tuple[int, ...]:
    """Parents of `nodes` nodes, none deeper than `depth`; `chaining` is how often a node hangs below the one before."""
    parents: list[int] = []
    depths = [0]
    for node in range(nodes):
        parent = node - 1 if pick.random() < chaining else pick.randint(-1, node - 1)
        if depths[parent + 1] >= depth:
            parent = -1
        parents.append(parent)
        depths.append(depths[parent + 1] + 1)
    return tuple(parents)
