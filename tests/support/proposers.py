"""Proposers that exist only in tests. The draft service loads them as it loads any third party's:

    --proposer random-tree=support.proposers:random_tree
    --proposer oracle=support.proposers:oracle:FILE        FILE: benchmarks.lib.continuations.write_continuations

Both are functions of the request's tokens alone, so that two runs of one request see the same trees.
"""

from __future__ import annotations

import hashlib
import struct
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.lib.continuations import continuation_key, read_continuations
from draft_service.proposers.base import DraftRequest, Opening, Proposer, ProposerOptions, Target
from slipstream.adapter_names import adapter_name
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

RECENT = 48
"""Tokens at the end of a text that decoys are drawn from, beside the whole vocabulary."""


@dataclass(slots=True)
class _Session:
    opening: Opening
    tokens: list[int]


class _HashedProposer(Proposer):
    """Keeps the tokens of each session and draws each tree from a generator seeded by them."""

    def __init__(self, options: ProposerOptions) -> None:
        self.name = options.name
        self.max_nodes = options.max_nodes or MAX_ROWS
        self.max_depth = options.max_depth or MAX_ROWS - 1
        self._sessions: dict[int, _Session] = {}
        self._vocabulary = 2

    def bind(self, target: Target) -> None:
        self._vocabulary = target.vocab_size

    def open(self, session: int, opening: Opening) -> None:
        self._sessions[session] = _Session(opening, list(opening.token_ids))

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._sessions[session].tokens.extend(token_ids)

    def close(self, session: int) -> None:
        self._sessions.pop(session, None)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        trees: list[TokenTree | None] = []
        for request in requests:
            session = self._sessions[request.session]
            tail = session.tokens[-8:]
            digest = hashlib.sha256(struct.pack(f"<{len(tail) + 1}I", len(session.tokens), *tail)).digest()
            nodes, depth = min(request.max_nodes, self.max_nodes) - 1, min(request.max_depth, self.max_depth)
            trees.append(self._tree(session, Random(digest), nodes, depth))
        return trees

    @abstractmethod
    def _tree(self, session: _Session, random: Random, max_nodes: int, max_depth: int) -> TokenTree | None:
        """A tree of at most `max_nodes` nodes, the root not counted, and depth at most `max_depth`."""

    def _token(self, session: _Session, random: Random) -> int:
        """Two times in three a token of the text's end, which the target may well repeat."""
        return random.choice(session.tokens[-RECENT:]) if random.random() < 0.67 else random.randrange(self._vocabulary)


class RandomTreeProposer(_HashedProposer):
    """Irregular trees: chains, bushes and everything between, siblings that repeat a token among them.

    Most are small, which keeps long runs affordable; one in twenty spends the whole budget.
    """

    def _tree(self, session: _Session, random: Random, max_nodes: int, max_depth: int) -> TokenTree | None:
        size = min(random.choices((random.randint(0, 4), random.randint(5, 15), max_nodes), (15, 4, 1))[0], max_nodes)
        depth_limit = random.randint(1, max_depth)
        chaining = random.choice((0.0, 0.5, 0.9, 1.0))
        parents: list[int] = []
        depths = [0]
        for node in range(size):
            parent = node - 1 if random.random() < chaining else random.randint(-1, node - 1)
            if depths[parent + 1] >= depth_limit:
                parent = -1
            parents.append(parent)
            depths.append(depths[parent + 1] + 1)
        return TokenTree(tuple(self._token(session, random) for _ in range(size)), tuple(parents))


class OracleProposer(_HashedProposer):
    """Hides the true continuation, to a random depth, among decoys at random places of a branching tree."""

    def __init__(self, options: ProposerOptions) -> None:
        super().__init__(options)
        self._continuations = read_continuations(Path(options.argument))

    def _tree(self, session: _Session, random: Random, max_nodes: int, max_depth: int) -> TokenTree | None:
        opening = session.opening
        prompt = session.tokens[: opening.prompt_length]
        adapter = adapter_name(opening.adapter_id)
        key = continuation_key(prompt, opening.sampling.temperature, opening.sampling.seed, adapter)
        truth = self._continuations.get(key, ())[len(session.tokens) - opening.prompt_length :]
        if not truth:
            return None
        true_path = truth[: random.randint(1, min(max_nodes, max_depth))]
        tokens = list(true_path)
        parents = list(range(-1, len(true_path) - 1))
        depths = list(range(1, len(true_path) + 1))
        for _ in range(random.randint(0, min(16, max_nodes - len(true_path)))):
            parent = random.randint(-1, len(tokens) - 1)
            depth = 1 if parent < 0 else depths[parent] + 1
            token = self._token(session, random)
            true_child = truth[parent + 1 : parent + 2] if parent < len(true_path) else ()
            if depth <= max_depth and (token,) != true_child:
                tokens.append(token)
                parents.append(parent)
                depths.append(depth)
        return _shuffled(tokens, parents, random)


def _shuffled(tokens: Sequence[int], parents: Sequence[int], random: Random) -> TokenTree:
    """The same tree with its nodes in another order; parents still come before children."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    ready = [(node, -1) for node in children.get(-1, [])]
    order: list[int] = []
    new_parents: list[int] = []
    while ready:
        node, parent = ready.pop(random.randrange(len(ready)))
        ready.extend((child, len(order)) for child in children.get(node, []))
        order.append(node)
        new_parents.append(parent)
    return TokenTree(tuple(tokens[node] for node in order), tuple(new_parents))


def random_tree(options: ProposerOptions) -> Proposer:
    return RandomTreeProposer(options)


def oracle(options: ProposerOptions) -> Proposer:
    return OracleProposer(options)


def placed(options: ProposerOptions) -> Proposer:
    """One that says it computes on the device that is its argument."""
    proposer = RandomTreeProposer(options)
    proposer.device = options.argument
    return proposer
