"""Memory of a GPU through which two processes queue behind one another: pass after round after pass, without the host.

Verify's block. After each pass verify writes what that decided, and last a word with the pass's number; the drafter
writes the trees that it drafts behind it, and last a word with the same number. See docs/protocol/device_queue.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

RESULT_WORDS = 130
"""Words of what a pass decides for a request, as `tree_walk` writes them."""
HEADER_WORDS = 8
"""In front of a tree: the pass's number and the stamp that was asked for; three words are unused."""
TREE_WORDS = 256
"""Words of a row of trees, header included."""
PARITIES = 2
"""Passes whose rows lie side by side: a number has its rows by its last bit."""
_WORD_DISTANCE = 64
"""Words from one sequence word to the next: they share no line of a cache."""
_DATA = 1024
MOST_NUMBER = 2**31 - 1
"""Numbers go from 1 to this one, and then from 1 on again."""


class QueueSide(NamedTuple):
    """The places of one parity. `decided` and `drafted`, int32 [1], are the sequence words.

    outcomes: int32 [slots, RESULT_WORDS]. trees: int32 [slots, TREE_WORDS].
    """

    decided: torch.Tensor
    outcomes: torch.Tensor
    drafted: torch.Tensor
    trees: torch.Tensor


def queue_bytes(slots: int) -> int:
    """Bytes of the data for passes of so many requests."""
    return 4 * (_DATA + PARITIES * slots * (RESULT_WORDS + TREE_WORDS))


def queue_sides(numbers: torch.Tensor, slots: int) -> tuple[QueueSide, ...]:
    """The places within a block's data, by parity. ValueError where they do not fit.

    numbers: bfloat16 [any], `DeviceBlock.numbers()`.
    """
    import torch

    if 2 * len(numbers) < queue_bytes(slots):
        raise ValueError(f"{2 * len(numbers)} bytes hold no queue of {slots} slots, which takes {queue_bytes(slots)}")
    words = numbers[: queue_bytes(slots) // 2].view(torch.int32)
    end = _DATA + PARITIES * slots * RESULT_WORDS
    outcomes = words[_DATA:end].view(PARITIES, slots, RESULT_WORDS)
    trees = words[end:].view(PARITIES, slots, TREE_WORDS)
    return tuple(
        QueueSide(_word(words, 2 * parity), outcomes[parity], _word(words, 2 * parity + 1), trees[parity])
        for parity in range(PARITIES)
    )


def next_number(number: int) -> int:
    """The number of the pass after this one."""
    return number % MOST_NUMBER + 1


def _word(words: torch.Tensor, index: int) -> torch.Tensor:
    return words[index * _WORD_DISTANCE : index * _WORD_DISTANCE + 1]
