"""Logprobs of tokens at any rows of a pass, from logits that are there for a few rows at a time."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.models.gpu.forward.gpu_forward import GpuForward
from slipstream_kernels.models.gpu.forward.head_buffers import HeadBuffers
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops
from slipstream_kernels.models.gpu.graph.pass_handle import RowScores
from slipstream_kernels.models.gpu.ranks.shard import Shard

SLICE_ROWS = 128
"""Rows whose logits are there at a time, which bounds their memory whatever the vocabulary."""
_MET_ROWS, _MET_TOP = (1, 4), (1, 2, 16)


class RowScorer:
    """Queues the head and `logprobs` behind a pass, on the current stream; no pass's own ops change by it."""

    def __init__(self, forward: GpuForward, shard: Shard, limits: GpuLimits, ops: Ops, device: torch.device) -> None:
        self._forward = forward
        self._ops = ops
        self._device = device
        self._buffers = HeadBuffers.empty(shard, _slice_rows(limits), device)
        self._order = torch.arange(_slice_rows(limits), dtype=torch.int32, device=device)

    @staticmethod
    def num_bytes(shard: Shard, limits: GpuLimits) -> int:
        """What its buffers take."""
        return HeadBuffers.empty(shard, _slice_rows(limits), torch.device("meta")).nbytes

    def queue(self, x: torch.Tensor, scored: Int32) -> RowScores:
        """Score rows of the residual stream `x` that a pass leaves: `scored` is the plan's. Nothing waits."""
        n, top = len(scored), int(scored[:, 2].max(initial=0))
        # Both begin where kernels are compiled for: at a multiple of 16 bytes.
        host = torch.from_numpy(np.ascontiguousarray(np.pad(scored[:, :2], ((0, -n % 4), (0, 0))).T))
        cuda = self._device.type == "cuda"
        rows, tokens = (host.pin_memory() if cuda else host).to(self._device, non_blocking=cuda)
        ranks, ids = rows.new_empty(n), rows.new_empty(n, top)
        rows, tokens = rows[:n], tokens[:n]
        values, of_ids = x.new_empty(n, dtype=torch.float32), x.new_empty(n, top, dtype=torch.float32)
        for start in range(0, n, len(self._order)):
            part = slice(start, min(n, start + len(self._order)))
            buffers = self._buffers.first(part.stop - start)
            self._forward.head(x, rows[part], buffers)
            order = self._order[: part.stop - start]
            outputs = values[part], ranks[part], ids[part], of_ids[part]
            self._ops.logprobs(buffers.logits, order, tokens[part], top, *outputs)
        ready = None
        if cuda:
            ready = torch.cuda.Event()
            ready.record()
        return RowScores(values, ranks, ids, of_ids, ready)


def logprobs_of(
    ops: Ops, logits: torch.Tensor, rows: Int32, chosen: Int32, top: int
) -> tuple[npt.NDArray[np.float32], Int32, Int32, npt.NDArray[np.float32]]:
    """See `GpuModel.logprobs`, of float32 `logits` [any, vocab]; on the current stream, which is waited for."""
    n = len(chosen)
    wanted, tokens = torch.from_numpy(np.stack([rows, chosen])).to(logits.device)
    ranks, ids = wanted.new_empty(n), wanted.new_empty(n, top)
    of_chosen, of_ids = logits.new_empty(n), logits.new_empty(n, top)
    ops.logprobs(logits, wanted, tokens, top, of_chosen, ranks, ids, of_ids)
    return of_chosen.cpu().numpy(), ranks.cpu().numpy(), ids.cpu().numpy(), of_ids.cpu().numpy()


def meet_logprobs(ops: Ops, logits: torch.Tensor) -> None:
    """Launch each kernel of `logprobs_of` once: they differ by where tokens lie, and whether one alone is likeliest."""
    for n, top in product(_MET_ROWS, _MET_TOP):
        nothing = np.zeros(n, np.int32)
        logprobs_of(ops, logits, nothing, nothing, top)


def read_scores(scores: RowScores) -> tuple[npt.NDArray[np.float32], Int32, Int32, npt.NDArray[np.float32]]:
    """The same on the host; the current stream waits for them."""
    if scores.ready is not None:
        torch.cuda.current_stream().wait_event(scores.ready)
    return (
        scores.logprobs.cpu().numpy(),
        scores.ranks.cpu().numpy(),
        scores.top_ids.cpu().numpy(),
        scores.top_logprobs.cpu().numpy(),
    )


def _slice_rows(limits: GpuLimits) -> int:
    return min(SLICE_ROWS, limits.prefill_chunk)
