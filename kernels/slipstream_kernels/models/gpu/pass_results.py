"""What is queued behind a pass: its results' way to the host, items decided again, the states that it keeps."""

from __future__ import annotations

from typing import NamedTuple

import torch

from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.pass_plan import Int32, PassPlan
from slipstream_kernels.models.gpu.graph.hidden_state_copies import CopyPlan, HiddenStateSender
from slipstream_kernels.models.gpu.graph.pass_buffers import BufferPool
from slipstream_kernels.models.gpu.graph.pass_clock import PassTimes
from slipstream_kernels.models.gpu.graph.pass_handle import PassHandle
from slipstream_kernels.models.gpu.graph.pinned_buffers import PinnedBuffer
from slipstream_kernels.models.gpu.masked_decision import MaskedDecision


class _Last(NamedTuple):
    """The last pass, before it is known what it is that it decides."""

    ticket: PassHandle
    plan: PassPlan
    copies: CopyPlan
    buffer: PinnedBuffer


class PassResults:
    """All of it on the current stream, that of the passes."""

    def __init__(
        self, pool: BufferPool, kept_logits: torch.Tensor, sender: HiddenStateSender, masked: MaskedDecision
    ) -> None:
        """`kept_logits`, float32 [rows, vocab], is where logits outlive the next pass."""
        self._pool = pool
        self._kept_logits = kept_logits
        self._sender = sender
        self._masked = masked
        self._last: _Last | None = None

    def queue(
        self,
        bucket: Bucket,
        plan: PassPlan,
        copies: CopyPlan,
        buffer: PinnedBuffer,
        times: PassTimes | None,
        *,
        again: bool,
    ) -> PassHandle:
        """Queue the copy of a pass's results to the host, and what becomes of its states unless `again` follows."""
        source = self._pool.of(bucket)
        decided = buffer.receive(source, len(plan.deciding))
        logits = source.logits[: len(plan.logit_rows)]
        kept = self._kept_logits[: len(logits)] if plan.keep_logits else None
        told = buffer.result.numpy(), buffer.awake.numpy()
        ticket = PassHandle(*told, decided, logits, kept, buffer.event, times=times, bucket=bucket)
        self._last = _Last(ticket, plan, copies, buffer)
        if not again:
            self._keep_states()
        return ticket

    def again(self, ticket: PassHandle, rows: Int32) -> None:
        """See `GpuModel.decide_again`."""
        last = self._last
        assert last is not None
        assert last.ticket is ticket, "another pass was launched since"
        if len(rows):
            buffer = last.buffer
            self._masked.queue(ticket.bucket, last.plan.deciding, rows, buffer.again_begun)
            buffer.receive_again(ticket.decided)
            ticket.decided_again(buffer.again.numpy(), buffer.again_begun, buffer.again_event)
        self._keep_states()

    def _keep_states(self) -> None:
        """Queue what becomes of the last pass's states, once."""
        last, self._last = self._last, None
        if last is not None and (bucket := last.ticket.bucket).boundaries:
            source = self._pool.of(bucket)
            states = self._sender.send(source.states, source.result, last.plan.rows, last.copies(), last.buffer)
            last.ticket.keep_states(states)
