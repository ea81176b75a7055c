"""Which prompt prefixes one verify service has cached, as it tells, and which will be soon."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

MOST_NAMES: Final = 1 << 18
"""Prefixes of one service that are remembered, some 80 bytes each. Others are taken not to be cached."""


class CachedPrefixes:
    """Names of cached prefixes (slipstream.prefix_hash), and of those that requests under way will leave there.

    What a service tells is numbered. After a gap nothing of it counts until a snapshot has come: what is thought cached
    and is not would draw requests for ever.
    """

    __slots__ = ("_cached", "_expected", "sequence")

    def __init__(self) -> None:
        self._cached: set[int] = set()
        self._expected: set[int] = set()
        self.sequence: int | None = None  # of the last news; None: only a snapshot is of use

    def __len__(self) -> int:
        """Prefixes that the service has told of."""
        return len(self._cached)

    @property
    def names(self) -> AbstractSet[int]:
        """Prefixes that the service has told of."""
        return self._cached

    def count(self, names: Sequence[int]) -> int:
        """How many of a prompt's prefixes, from the shortest on, are there.

        By bisection, as a cache that holds a prefix holds all shorter ones: of a service that lies about it the answer
        is another lie.
        """
        return _count(names, self._cached, self._expected)

    def told(self, names: Sequence[int]) -> int:
        """How many the service says are there, those aside that requests will leave."""
        return _count(names, self._cached, ())

    def take(self, sequence: int, added: Sequence[int], evicted: Sequence[int], *, snapshot: bool) -> bool:
        """Take news of the cache; False where a number is missing, so that a snapshot has to be asked for."""
        if snapshot:
            self._cached.clear()
        elif self.sequence is None:
            return True
        elif sequence != self.sequence + 1:
            self.forget()
            return False
        self.sequence = sequence
        self._cached.difference_update(evicted)
        self._cached.update(added[: max(0, MOST_NAMES - len(self._cached))])
        return True

    def forget(self) -> None:
        """Nothing counts that the service has told, until a snapshot comes."""
        self._cached.clear()
        self.sequence = None

    def expect(self, names: Iterable[int]) -> None:
        """A request that has just been sent will leave these there once its prompt is computed."""
        self._expected.update(names)

    def unexpect(self, names: Iterable[int]) -> None:
        """The request is past its prompt, or gone: from now on what the service tells decides."""
        self._expected.difference_update(names)


def _count(names: Sequence[int], cached: Collection[int], expected: Collection[int]) -> int:
    if not names or not (names[0] in cached or names[0] in expected):
        return 0
    low, high = 1, len(names)
    while low < high:
        middle = (low + high) // 2
        name = names[middle]
        if name in cached or name in expected:
            low = middle + 1
        else:
            high = middle
    return low
