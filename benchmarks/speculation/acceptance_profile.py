"""How often a made-up drafter is right, and the trees that are best for one that is right so often.

Of the tokens that the drafter would list after a right one, by falling probability, the first is the target's with a
given chance; what is left is shared: a third of it is the second's chance, half of that the third's, and so on, so that
about a third of it is no listed token's.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import exp, log
from pathlib import Path
from random import Random

RANKS = 16
"""Children of a node, at most."""


@dataclass(frozen=True, slots=True)
class Profile:
    """first: the chance that the likeliest token is right, above 0 and below 1."""

    first: float

    @property
    def chances(self) -> tuple[float, ...]:
        """Of the tokens by rank, given that their parent is right."""
        return (self.first, *((1.0 - self.first) / 3 / 2**rank for rank in range(RANKS - 1)))

    def ranks(self, seed: str, count: int) -> list[int]:
        """Which rank is right at each of so many positions of a text; RANKS stands for none."""
        chances = [*self.chances, 1.0 - sum(self.chances)]
        return Random(seed).choices(range(RANKS + 1), weights=chances, k=count)


@dataclass(frozen=True)
class Shape:
    """A tree by its nodes, level by level: parents, -1 for the root, and ranks among siblings."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    log_probs: tuple[float, ...]

    @cached_property
    def children(self) -> dict[int, dict[int, int]]:
        """Of each node that has any, its children by rank."""
        found: dict[int, dict[int, int]] = {}
        for node, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True)):
            found.setdefault(parent, {})[rank] = node
        return found

    @property
    def expected_length(self) -> float:
        """Tokens that a step yields with such trees, the bonus token included."""
        return 1.0 + sum(map(exp, self.log_probs))


def best_shape(profile: Profile, *, nodes: int, depth: int, width: int) -> Shape:
    """The likeliest nodes of all trees that are at most `depth` deep and have `width` children a node."""
    logs = [log(chance) for chance in profile.chances[:width]]
    heap: list[tuple[float, int, int, int, int]] = [(-logs[0], 0, 1, -1, 0)]
    taken: list[tuple[int, int, float, int, int]] = []  # level, order, log-probability, parent's order, rank
    made = 1
    while heap and len(taken) < nodes:
        cost, _, level, parent, rank = heapq.heappop(heap)
        order = len(taken)
        taken.append((level, order, -cost, parent, rank))
        if rank + 1 < width:
            heapq.heappush(heap, (cost + logs[rank] - logs[rank + 1], made, level, parent, rank + 1))
            made += 1
        if level < depth:
            heapq.heappush(heap, (cost - logs[0], made, level + 1, order, 0))
            made += 1
    taken.sort()
    place = {order: node for node, (_, order, *_) in enumerate(taken)} | {-1: -1}
    return Shape(
        tuple(place[parent] for *_, parent, _ in taken),
        tuple(rank for *_, rank in taken),
        tuple(score for _, _, score, _, _ in taken),
    )


@dataclass(frozen=True, slots=True)
class OraclePlan:
    """A file that an oracle is named with: how often it is right, about the texts in the file `continuations`."""

    first: float
    continuations: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> OraclePlan:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def placed(shape: Shape, decoys: Sequence[int], truth: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
    """Tokens of a tree with the true ones where `ranks` says, level by level; all others are `decoys`.

    decoys: different tokens, one for each node and one more.
    """
    tokens = list(decoys[: len(shape.parents)])
    node = -1
    for token, rank in zip(truth, ranks, strict=False):
        siblings = shape.children.get(node)
        if siblings is None:
            break
        for other in siblings.values():
            if tokens[other] == token:
                tokens[other] = decoys[len(shape.parents)]
        if rank not in siblings:
            break
        node = siblings[rank]
        tokens[node] = token
    return tuple(tokens)
