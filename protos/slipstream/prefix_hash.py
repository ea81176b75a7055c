"""Hashes of prompt prefixes, by which gateways and verify services name KV pages to one another.

Only prefixes of certain lengths have a name, so that long ones cost little: each of up to 16 pages, then eight an
octave. In pages these are the numbers that are zero below their four highest bits, which are called marks here. The
name is the first 8 bytes, as a little-endian number, of SHA-256 over the prefix's token ids (4 bytes each,
little-endian), XOR a salt. The salt is the same of SHA-256 over: the length of the tenant's name in bytes (8 bytes,
little-endian), the name in UTF-8, the same of the adapter's id. So what one tenant has cached is found for no other.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

_TOKEN_BYTES: Final = 4
_LENGTH_BYTES: Final = 8
_HASH_BYTES: Final = 8
_EXACT_BITS: Final = 4
_STEPS: Final = 1 << (_EXACT_BITS - 1)


def marks_within(pages: int) -> int:
    """How many marks are no greater than `pages`."""
    zeros = max(0, pages.bit_length() - _EXACT_BITS)
    return _STEPS * zeros + (pages >> zeros)


def mark(index: int) -> int:
    """Pages of the prefix that has the index-th name, from 1 on."""
    zeros = max(0, index - _STEPS) // _STEPS
    return (index - _STEPS * zeros) << zeros


class PrefixHasher:
    """Goes along a prompt from its start, in whole pages, and yields the hashes of marks; they have no salt yet."""

    __slots__ = ("_page_size", "_pages", "_state")

    def __init__(self, page_size: int, pages: int = 0, state: Any = None) -> None:
        """`state` is that of hashlib after `pages`, if any; its type has no public name."""
        self._page_size = page_size
        self._pages = pages
        self._state = hashlib.sha256(usedforsecurity=False) if state is None else state

    def extend(self, tokens: Sequence[int]) -> list[int]:
        """Go on by all full pages of `tokens`; the hashes of the marks that end within them."""
        begin, count = self._pages, len(tokens) // self._page_size
        size = self._page_size * _TOKEN_BYTES
        data, state, at = memoryview(_token_bytes(tokens)), self._state, 0
        hashes: list[int] = []
        for index in range(marks_within(begin) + 1, marks_within(begin + count) + 1):
            end = (mark(index) - begin) * size
            state.update(data[at:end])
            hashes.append(int.from_bytes(state.digest()[:_HASH_BYTES], "little"))
            at = end
        state.update(data[at : count * size])
        self._pages += count
        return hashes

    def copy(self) -> Self:
        """A hasher that goes on separately."""
        return type(self)(self._page_size, self._pages, self._state.copy())


class PromptHashes(NamedTuple):
    """The hashes of a prompt's marks, ascending, without salt."""

    page_size: int
    hashes: Sequence[int]


def hash_prompt(token_ids: Sequence[int], page_size: int) -> PromptHashes:
    """Hash a prompt. OverflowError for ids beyond 32 bits."""
    return PromptHashes(page_size, PrefixHasher(page_size).extend(token_ids))


@functools.lru_cache(4096)
def prefix_salt(tenant: str, adapter_id: str) -> int:
    """What the hashes of a namespace are XORed with."""
    state = hashlib.sha256(usedforsecurity=False)
    for name in (tenant.encode(), adapter_id.encode()):
        state.update(len(name).to_bytes(_LENGTH_BYTES, "little") + name)
    return int.from_bytes(state.digest()[:_HASH_BYTES], "little")


def _token_bytes(tokens: Sequence[int]) -> bytes:
    ids = tokens if isinstance(tokens, array) and tokens.typecode == "I" else array("I", tokens)
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()
