"""States of sequences at boundaries of the target, computed by the engine's own passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from slipstream_kernels.models.capture_layers import Bits, Capture
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from training.features.packing import Int32, Piece, Places, num_pages, packed
from training.features.settings import Machine

PAGE_SIZE: Final = 16


class StateReader(Protocol):
    """A target that is loaded. Used by one thread."""

    def states(self, sequences: Iterable[tuple[int, Int32]]) -> Iterator[tuple[list[Piece], Bits]]:
        """Passes over (number, tokens) of sequences: their pieces, and the states of these, one row a token.

        Bits of bfloat16 [rows, boundaries * hidden_size], the caller's own; rows in the order of the sequences given.
        Numbers differ, and no sequence is longer than the reader was made for.
        """
        ...


def open_reader(model: Path, boundaries: tuple[int, ...], machine: Machine, *, longest: int) -> StateReader:
    """Load a target for sequences of at most `longest` tokens.

    Raises CheckpointError, ValueError for a device that is not there, OutOfDeviceMemoryError.
    """
    if machine.on_cpu:
        target = CausalLM.load(model, threads=machine.threads)
        target.warm_up()
        return CpuReader(target, boundaries, machine.pass_rows, longest)
    from training.features.gpu_reader import load_gpu_reader  # brings triton

    return load_gpu_reader(model, boundaries, machine, longest=longest)


class CpuReader:
    """A StateReader over a model whose passes run in the calling thread and its team."""

    def __init__(self, model: CausalLM, boundaries: tuple[int, ...], rows: int, longest: int) -> None:
        self._model = model
        self._boundaries = boundaries
        self._rows = rows
        self._longest = longest
        pages = num_pages(rows=rows, most=rows, longest=longest, page_size=PAGE_SIZE)
        self._cache = model.new_cache(num_pages=pages, page_size=PAGE_SIZE, scratch_slots=0)

    def states(self, sequences: Iterable[tuple[int, Int32]]) -> Iterator[tuple[list[Piece], Bits]]:
        config = self._model.config
        places = Places(rows=self._rows, most=self._rows, longest=self._longest, page_size=PAGE_SIZE)
        for pieces in packed(sequences, rows=self._rows, most=self._rows):
            batch = row_batch(pieces, places)
            capture = Capture.of(
                self._boundaries, len(batch), num_layers=config.num_layers, hidden_size=config.hidden_size
            )
            self._model.forward(self._cache, batch, capture)
            places.release(pieces)
            yield pieces, capture.rows


def row_batch(pieces: list[Piece], places: Places) -> RowBatch:
    """The rows of a pass whose logits nobody wants."""
    lines = [places.take(piece)[0] for piece in pieces]
    page_lines = np.repeat(np.array(lines, np.int32), [len(piece) for piece in pieces])
    positions = np.concatenate([np.arange(piece.start, piece.start + len(piece), dtype=np.int32) for piece in pieces])
    pages, offsets = np.divmod(positions, np.int32(places.page_size))
    return RowBatch(
        token_ids=np.concatenate([piece.token_ids for piece in pieces]),
        positions=positions,
        write_slots=places.table[page_lines, pages] * np.int32(places.page_size) + offsets,
        page_lines=page_lines,
        prefix_lengths=positions + np.int32(1),
        ancestor_slots=np.zeros((len(positions), 1), np.int32),
        num_ancestors=np.zeros(len(positions), np.int32),
        page_table=places.table,
        logit_rows=np.zeros(0, np.int32),
    )
