"""States of sequences from a model on a GPU: while one pass runs, the states of the one before it are taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import torch

from slipstream_kernels.models.capture_layers import Bits
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.batch.plan_kernels import SPAN
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.graph.pass_handle import PassHandle
from training.features.packing import Int32, Piece, Places, num_pages, packed
from training.features.settings import Machine

PAGE_SIZE: Final = 16
MOST_SEQUENCES: Final = 64
"""Of one pass."""


def gpu_limits(boundaries: tuple[int, ...], rows: int, longest: int, memory_utilization: float = 0.9) -> GpuLimits:
    """What a model must be prepared for; it takes no more memory for KV than passes of `packed` need."""
    return GpuLimits(
        max_running=MOST_SEQUENCES,
        max_nodes=1,
        step_nodes=0,
        prefill_chunk=rows,
        page_size=PAGE_SIZE,
        num_pages=num_pages(rows=rows, most=MOST_SEQUENCES, longest=longest, page_size=PAGE_SIZE),
        max_context=longest,
        memory_utilization=memory_utilization,
        boundaries=len(boundaries),
    )


def load_gpu_reader(model: Path, boundaries: tuple[int, ...], machine: Machine, *, longest: int) -> GpuReader:
    """See `open_reader`. The model is exact: its states are those that exact serving gives."""
    if not torch.cuda.is_available():
        raise ValueError(f"device {machine.device} is not available: PyTorch {torch.__version__} finds no GPU")
    limits = gpu_limits(boundaries, machine.pass_rows, longest, machine.memory_utilization)
    return GpuReader(GpuModel.load(model, limits, device=machine.device), boundaries)


class GpuReader:
    """A StateReader over a GpuModel of `gpu_limits`."""

    def __init__(self, model: GpuModel, boundaries: tuple[int, ...]) -> None:
        self._model = model
        model.capture(boundaries)

    def states(self, sequences: Iterable[tuple[int, Int32]]) -> Iterator[tuple[list[Piece], Bits]]:
        limits = self._model.limits
        rows, most = limits.prefill_chunk, limits.max_running
        places = Places(rows=rows, most=most, longest=limits.max_context, page_size=limits.page_size)
        running: tuple[list[Piece], PassHandle] | None = None
        for pieces in packed(sequences, rows=rows, most=most):
            ticket = self._launch(pieces, places)
            if running is not None:
                yield running[0], _rows_of(*running)
            running = pieces, ticket
        if running is not None:
            yield running[0], _rows_of(*running)

    def _launch(self, pieces: list[Piece], places: Places) -> PassHandle:
        """Queue a pass. Those after it may have its lines and pages: they run behind it."""
        ordered = _order(pieces)
        lines = []
        for piece in ordered:
            line, filled = places.take(piece)
            self._model.set_pages(line, filled.start, places.table[line, filled.start : filled.stop])
            lines.append(line)
        places.release(pieces)
        return self._model.launch(plan_of(ordered, lines, places))


def plan_of(pieces: list[Piece], lines: list[int], places: Places) -> PassPlan:
    """The plan of a pass that decides nothing; pieces of one token come first, as those do that decode."""
    decodes = sum(len(piece) == 1 for piece in pieces)
    items = [(line, piece.start, len(piece), 0, 0, -1, 0) for line, piece in zip(lines, pieces, strict=True)]
    return PassPlan.of_spans(
        np.array(items, np.int32).reshape(-1, SPAN),
        decodes,
        np.concatenate([piece.token_ids for piece in pieces]).astype(np.int32),
        np.zeros(0, np.int32),
        page_table=places.table,
        page_size=places.page_size,
        keep_logits=False,
    )


def _order(pieces: list[Piece]) -> list[Piece]:
    """As `plan_of` wants them."""
    return sorted(pieces, key=lambda piece: len(piece) > 1)


def _rows_of(pieces: list[Piece], ticket: PassHandle) -> Bits:
    """A pass's states in the order of its pieces, out of memory that is used again."""
    states = ticket.states()
    assert states is not None
    ordered = _order(pieces)
    if ordered == pieces:
        return states.copy()
    counts = np.array([len(piece) for piece in ordered])
    first = dict(zip(map(id, ordered), np.cumsum(counts) - counts, strict=True))
    return np.concatenate([states[first[id(piece)] : first[id(piece)] + len(piece)] for piece in pieces])
