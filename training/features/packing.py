"""Cuts sequences into passes: several short ones together, a long one over several passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Consecutive tokens of one sequence from position `start` on. `last`: the sequence ends with them."""

    sequence: int
    start: int
    token_ids: Int32
    last: bool

    def __len__(self) -> int:
        return len(self.token_ids)


def packed(sequences: Iterable[tuple[int, Int32]], *, rows: int, most: int) -> Iterator[list[Piece]]:
    """Passes of at most `rows` rows and `most` sequences over (number, tokens) of sequences, each of 1 token or more.

    Rows follow one another as the tokens do: what passes compute in order is the states of one sequence after the
    other, and the only sequence that goes on from pass to pass is the last of one and the first of the next.
    """
    taken: list[Piece] = []
    room = rows
    for sequence, token_ids in sequences:
        start = 0
        while start < len(token_ids):
            count = min(room, len(token_ids) - start)
            end = start + count
            taken.append(Piece(sequence, start, token_ids[start:end], last=end == len(token_ids)))
            start, room = end, room - count
            if room == 0 or len(taken) == most:
                yield taken
                taken, room = [], rows
    if taken:
        yield taken


def num_pages(*, rows: int, most: int, longest: int, page_size: int) -> int:
    """Pages that passes of `packed` need at most: one sequence goes on, the others are whole within their pass."""
    return -(-longest // page_size) + rows // page_size + most + 1


class Places:
    """Gives the sequences of passes lines of a page table, and pages as they grow; for passes of one `packed`.

    A sequence holds its line and its pages until its last piece is released.
    """

    def __init__(self, *, rows: int, most: int, longest: int, page_size: int) -> None:
        """`longest` is the length of the longest sequence."""
        self.page_size = page_size
        context = -(-longest // page_size)
        self.table = np.zeros((most, context), np.int32)
        self._free = list(range(num_pages(rows=rows, most=most, longest=longest, page_size=page_size)))
        self._begun = 0
        self._held: dict[int, tuple[int, int]] = {}  # line and pages

    def take(self, piece: Piece) -> tuple[int, range]:
        """The line of a piece's sequence, and which of its entries were filled for this piece."""
        line, count = self._held.get(piece.sequence, (self._begun % len(self.table), 0))
        self._begun += piece.sequence not in self._held
        filled = range(count, -(-(piece.start + len(piece)) // self.page_size))
        for entry in filled:
            self.table[line, entry] = self._free.pop()
        self._held[piece.sequence] = (line, filled.stop)
        return line, filled

    def release(self, pieces: Iterable[Piece]) -> None:
        """Free what the sequences that ended hold. To be called once their pass has been launched."""
        for piece in pieces:
            if piece.last:
                line, count = self._held.pop(piece.sequence)
                self._free.extend(self.table[line, :count].tolist())
