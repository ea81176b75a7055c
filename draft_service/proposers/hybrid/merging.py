"""Trees of several proposers as one: equal prefixes share nodes, the likeliest nodes are kept, outcomes are learned."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream_kernels.calibration import LEAST, MOST, Calibration, prob_bin
from slipstream_kernels.token_tree import TokenTree

_DEEPEST = 8
"""Deeper nodes count as this depth."""
_UNKNOWN = -1
"""Recent accept length class of a proposer without a step."""
_FIRST, _FURTHER = 0.6, 0.15
"""Initial probabilities of a first child and of further ones, where a proposer gives none."""

Cells = tuple[Hashable, ...]


def accept_length_class(accepted: int) -> int:
    """Return the class of an accept length of one step: 0, 1, 2 to 3, 4 and more tokens."""
    return min(3, accepted.bit_length())


@dataclass(slots=True)
class MergedNode:
    """A token below a parent (-1: the root), and its cells and the proposer's own probability, by proposer."""

    token: int
    parent: int
    depth: int
    children: dict[int, int] = field(default_factory=dict)
    claims: dict[str, tuple[Cells, float]] = field(default_factory=dict)
    joint: Cells = ()


@dataclass(slots=True)
class MergedDraft:
    """Trees of one request. A node comes after its parent. `voices`: which proposers drafted below each, in order."""

    calibration: Calibration
    nodes: list[MergedNode] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    voices: dict[int, dict[str, None]] = field(default_factory=dict)

    @classmethod
    def of(cls, calibration: Calibration, trees: Mapping[str, TokenTree], recent: Mapping[str, int]) -> MergedDraft:
        """Merge valid trees by proposer; ties go to the earlier. `recent`: accept length classes, where known."""
        draft = cls(calibration)
        for source, tree in trees.items():
            draft._add(source, tree, recent.get(source, _UNKNOWN))
        return draft

    def best(self, max_nodes: int) -> TokenTree:
        """The `max_nodes` nodes of highest path probability, best first; a tree, since it falls along every path."""
        paths: list[float] = []
        sources: list[str] = []
        for node in self.nodes:
            share, source = self._judge(node)
            paths.append(math.log(share) + (paths[node.parent] if node.parent >= 0 else 0.0))
            sources.append(source)
        kept = sorted(range(len(paths)), key=lambda node: -paths[node])[:max_nodes]
        place = {node: i for i, node in enumerate(kept)} | {-1: -1}
        return TokenTree(
            tuple(self.nodes[node].token for node in kept),
            tuple(place[self.nodes[node].parent] for node in kept),
            tuple(paths[node] for node in kept),
            tuple(sources[node] for node in kept),
        )

    def learn(self, decided: Sequence[int]) -> dict[str, int]:
        """The target decided these tokens after the state that was drafted for. Returns how many each had right."""
        right = dict.fromkeys((source for child in self.first.values() for source in self.nodes[child].claims), 0)
        children = self.first
        for depth, token in enumerate(decided, start=1):
            for child in children.values():
                node = self.nodes[child]
                for cells, _ in node.claims.values():
                    self.calibration.observe(cells, node.token == token)
                self.calibration.observe(node.joint, node.token == token)
            if token not in children:
                break
            node = self.nodes[children[token]]
            right.update(dict.fromkeys(node.claims, depth))
            children = node.children
        return right

    def _add(self, source: str, tree: TokenTree, recent: int) -> None:
        reach = tree.depth.bit_length()
        places: list[int] = []
        for i, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
            above = places[parent] if parent >= 0 else -1
            siblings = self.nodes[above].children if above >= 0 else self.first
            if token not in siblings:
                siblings[token] = len(self.nodes)
                self.nodes.append(MergedNode(token, above, self.nodes[above].depth + 1 if above >= 0 else 1))
            place = siblings[token]
            places.append(place)
            self.voices.setdefault(above, {})[source] = None
            node = self.nodes[place]
            if tree.log_probs is None:
                claim = _FURTHER if any(source in self.nodes[s].claims for s in siblings.values()) else _FIRST
            else:
                claim = math.exp(min(0.0, tree.log_probs[i] - (tree.log_probs[parent] if parent >= 0 else 0.0)))
            claim = min(MOST, max(LEAST, claim))
            if source not in node.claims or node.claims[source][1] < claim:
                coarse = (source, prob_bin(claim), recent)
                node.claims[source] = ((coarse, (*coarse, reach), (*coarse, reach, min(node.depth, _DEEPEST))), claim)

    def _judge(self, node: MergedNode) -> tuple[float, str]:
        """Probability that a node is right if its parent is, and who says so."""
        shares = {source: self.calibration.estimate(cells, claim) for source, (cells, claim) in node.claims.items()}
        source = max(shares, key=lambda each: shares[each])
        voices = self.voices[node.parent]
        if len(voices) == 1:
            return shares[source], source
        # Those that drafted other tokens in its place speak against it.
        votes = tuple((voice, voice in shares) for voice in voices)
        node.joint = (votes, (votes, prob_bin(shares[source])))
        return self.calibration.estimate(node.joint, shares[source]), source
