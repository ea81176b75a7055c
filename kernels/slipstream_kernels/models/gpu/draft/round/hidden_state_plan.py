"""Rounds that draft from one state each: their limits, the sizes they are padded to, and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.draft.round.limits import SESSION_SIZES
from slipstream_kernels.token_tree import MAX_ROWS

Int32 = npt.NDArray[np.int32]
A = TypeVar("A")

_ALIGNMENT = 16
"""Words to which every array is aligned: 64 bytes."""
_FREE_UPDATES, _UPDATES_PER_SESSION = 64, 8


@dataclass(frozen=True, slots=True)
class HiddenStateLimits:
    """Raises ValueError with the field and its limit where a value is out of range.

    max_depth: levels of the largest tree. width: children of a node, and nodes expanded a level unless all are.
    max_sessions: that are open at once. sizes: sessions of the rounds that graphs are captured for.
    memory_utilization: share of the device's memory that everything on it together may take.
    """

    max_depth: int
    width: int
    max_sessions: int = 128
    sizes: tuple[int, ...] = SESSION_SIZES
    memory_utilization: float = 0.95

    def __post_init__(self) -> None:
        for field, most in (("max_depth", MAX_ROWS - 1), ("width", 16), ("max_sessions", 4096)):
            if not 1 <= getattr(self, field) <= most:
                raise ValueError(f"{field} is {getattr(self, field)}, must be from 1 to {most}")

    @property
    def round_sizes(self) -> tuple[int, ...]:
        """Sessions of the rounds, ascending; none holds more than can be open."""
        return tuple(sorted({min(size, self.max_sessions) for size in self.sizes}))

    @property
    def lines(self) -> GpuLimits:
        """Limits of the tables that hold a line a session; nothing lies in pages."""
        return GpuLimits(max_running=self.max_sessions, max_context=1)


class HiddenStateBucket(NamedTuple):
    """A round of `levels` levels for `sessions` sessions.

    filtered: some session samples with top_k, top_p or min_p. by_node: every node that is expanded has scores of its
    own; else a level's serve all its nodes.
    """

    sessions: int
    levels: int
    filtered: bool
    by_node: bool

    @property
    def rows(self) -> int:
        """Of the first pass."""
        return self.sessions


class HiddenStateBuckets:
    """All buckets, and the choice among them."""

    def __init__(self, limits: HiddenStateLimits, *, independent: bool) -> None:
        """independent: a level's scores serve all its nodes, but for requests with penalties."""
        most = limits.max_depth
        self._sizes = limits.round_sizes
        self._levels = sorted({levels for levels in (1, 2, 4, 8, 16, 32) if levels < most} | {most})
        self._independent = independent

    @property
    def max_sessions(self) -> int:
        return self._sizes[-1]

    def all(self) -> list[HiddenStateBucket]:
        """Every bucket that is ever found, the largest first."""
        most, alike = self._levels[-1], self._independent
        buckets = []
        for size in reversed(self._sizes):
            buckets += [HiddenStateBucket(size, most, filtered=True, by_node=True)]
            buckets += [HiddenStateBucket(size, most, filtered=True, by_node=False)] if alike else []
            buckets += [HiddenStateBucket(size, levels, False, not alike) for levels in reversed(self._levels)]
        return buckets

    def find(self, sessions: int, levels: int, *, filtered: bool, penalised: bool) -> HiddenStateBucket:
        """The smallest that holds a round; those with filters or penalties have all levels.

        Raises ValueError where none does.
        """
        size = _at_least(sessions, self._sizes, "sessions")
        depth = _at_least(levels, self._levels, "levels")
        if penalised and self._independent:
            return HiddenStateBucket(size, self._levels[-1], filtered=True, by_node=True)
        return HiddenStateBucket(size, self._levels[-1] if filtered else depth, filtered, not self._independent)


@dataclass(frozen=True, slots=True)
class HiddenStateItem:
    """A session's part of a round.

    line: of the tables. position: of its newest token, token_id: that token. max_nodes (the root not counted),
    max_depth: limits of its tree.
    """

    line: int
    position: int
    token_id: int
    max_nodes: int
    max_depth: int


@dataclass(frozen=True, slots=True)
class HiddenStateArrays(Generic[A]):
    """The padded arrays of a round, int32, named as the ops' arguments."""

    updates: A
    token_ids: A
    """[sessions], the newest of each"""
    limits: A
    """[sessions, 2]"""
    rows: A
    """[passes, sessions], a row's own number within its pass, -1 for padding. Where levels serve all their nodes they
    are one pass of [levels, sessions] rows, else there is that of the roots"""
    lines: A
    positions: A
    """as `rows`: a row decides the position after its own"""
    node_lines: A
    """[sessions * width], where nodes have rows"""
    node_positions: A
    """[levels - 1, sessions * width]"""


class HiddenStateLayout:
    """Where the arrays of a bucket's rounds lie, and how they are filled."""

    def __init__(self, bucket: HiddenStateBucket, width: int) -> None:
        self._bucket = bucket
        self._width = width
        sessions = (bucket.sessions,)
        roots = (1 if bucket.by_node else bucket.levels, bucket.sessions)
        nodes = bucket.sessions * width if bucket.by_node else 0
        self._shapes: dict[str, tuple[int, ...]] = {
            "updates": (_FREE_UPDATES + _UPDATES_PER_SESSION * bucket.sessions, 2),
            "token_ids": sessions,
            "limits": (*sessions, 2),
            **dict.fromkeys(("rows", "lines", "positions"), roots),
            "node_lines": (nodes,),
            "node_positions": (bucket.levels - 1, nodes),
        }
        assert list(self._shapes) == [field.name for field in fields(HiddenStateArrays)]
        self._offsets: dict[str, int] = {}
        self.words = 0
        for name, size in self._shapes.items():
            self._offsets[name] = self.words
            self.words += -(-prod(size) // _ALIGNMENT) * _ALIGNMENT

    def views(self, block: Any) -> HiddenStateArrays[Any]:
        """The arrays within a block of at least `words` words, a tensor or a numpy array."""
        return HiddenStateArrays(
            **{
                name: block[offset : offset + prod(size)].reshape(size)
                for (name, offset), size in zip(self._offsets.items(), self._shapes.values(), strict=True)
            }
        )

    def pack(self, items: Sequence[HiddenStateItem], host: HiddenStateArrays[Int32]) -> None:
        """Fill all arrays but `updates`."""
        table = np.zeros((self._bucket.sessions, 5), np.int32)
        if items:
            table[: len(items)] = [(i.line, i.position, i.token_id, i.max_nodes, i.max_depth) for i in items]
        line, position, host.token_ids[:], max_nodes, max_depth = table.T
        host.limits[:, 0], host.limits[:, 1] = max_nodes, max_depth
        levels = np.arange(len(host.rows), dtype=np.int32)[:, None]
        number = np.arange(host.rows.size, dtype=np.int32).reshape(host.rows.shape)
        host.rows[:] = np.where(levels < max_depth, number, -1)
        host.lines[:] = line
        host.positions[:] = position + levels
        if self._bucket.by_node:
            host.node_lines[:] = np.repeat(line, self._width)
            deeper = np.arange(1, self._bucket.levels, dtype=np.int32)[:, None]
            host.node_positions[:] = np.repeat(position, self._width) + deeper


def _at_least(value: int, sizes: Sequence[int], what: str) -> int:
    for size in sizes:
        if size >= value:
            return size
    raise ValueError(f"a round of {value} {what} is larger than {sizes[-1]}")
