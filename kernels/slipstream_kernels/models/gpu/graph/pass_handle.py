"""A pass under way: what it will answer, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from slipstream_kernels.models.capture_layers import Bits
from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.models.gpu.graph.pass_clock import BehindSeconds, PassTimes


@dataclass(frozen=True, slots=True, eq=False)
class CapturedHiddenStates:
    """A pass's states: on the host once `event` has come, copied on the device once `copied` has; None: already."""

    rows: torch.Tensor
    event: torch.cuda.Event | None
    copied: torch.cuda.Event | None


class RowScores(NamedTuple):
    """What a pass says of tokens, on its device once `ready` comes; None where it is there. Else as of `logprobs`."""

    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    ready: torch.cuda.Event | None


class PassHandle:
    """Handed out by `GpuModel.launch`."""

    __slots__ = (
        "_again",
        "_again_at",
        "_again_begun",
        "_awake_at",
        "_copied",
        "_event",
        "_items",
        "_kept",
        "_logits",
        "_moved",
        "_results",
        "_results_at",
        "_rows",
        "_states",
        "_unmasked",
        "awake",
        "bucket",
        "decided",
        "scores",
        "times",
    )

    def __init__(
        self,
        results_at: Int32,
        awake_at: Int32,
        decided: torch.Tensor,
        logits: torch.Tensor,
        kept: torch.Tensor | None,
        event: torch.cuda.Event | None,
        states: CapturedHiddenStates | None = None,
        times: PassTimes | None = None,
        *,
        bucket: Bucket,
    ) -> None:
        """`results_at` receives the `decided` results once `event` has come; None if they are there already. So does
        `awake_at` the counts of experts.

        `logits` are moved to `kept` before another pass overwrites them, or lost where that is None.
        `states` are what the pass keeps.
        """
        self._results_at: Int32 | None = results_at
        self._awake_at = awake_at
        self.awake = 0
        """Experts that the pass has woken, over all layers, once `results` are known; 0 of a model without."""
        self._items = len(decided)
        self.decided = decided
        """int32 [items, 130], `results` on the device: whoever reads them there does so before the next pass starts."""
        self._logits: torch.Tensor | None = logits
        self._kept = kept
        self._event = event
        self._again: torch.cuda.Event | None = None
        self._again_begun: torch.cuda.Event | None = None
        self._again_at: Int32 | None = None
        self._unmasked: Int32 | None = None
        self._results: Int32 | None = None
        self._moved: torch.cuda.Event | None = None
        self._states = states
        self._copied = None if states is None else states.copied
        """Comes once states are where they were to be copied to on the device; None once it has."""
        self._rows: Bits | None = None
        self.scores: RowScores | None = None
        """Of the plan's `scored` rows, where there are any."""
        self.times = times
        """By the device's clock; None where it has none."""
        self.bucket = bucket
        """What the pass was padded to."""

    def done(self) -> bool:
        """Whether the pass is over: `results` would not wait, unless items are decided again behind it."""
        return self._results is not None or self._event is None or self._event.query()

    def wait(self) -> None:
        """Until the pass is over."""
        if self._results is None and self._event is not None:
            self._event.synchronize()

    def decided_again(self, results_at: Int32, begun: torch.cuda.Event | None, event: torch.cuda.Event | None) -> None:
        """From now on `results` are those that `results_at` receives once this event has come; None: already.

        `begun` comes as rows are sampled again.
        """
        assert self._results is None, "somebody has the results"
        self._again_at, self._again_begun, self._again = results_at, begun, event

    def again_seconds(self) -> BehindSeconds | None:
        """What deciding items again took, by the device's clock; to be asked for once `results` are known.

        None where nothing was decided again, or there is no clock.
        """
        if self.times is None or self._again is None or self._again_begun is None:
            return None
        return self.times.behind(self._again_begun, self._again)

    def unmasked(self) -> Int32 | None:
        """What `results` were before they were decided again, once these are known; None where they were not."""
        return self._unmasked

    def keep_states(self, states: CapturedHiddenStates) -> None:
        """What the pass keeps, which was not known as it was launched."""
        self._states, self._copied = states, states.copied

    def results(self) -> Int32:
        """int32 [items, 130] of the plan's `deciding`, as `tree_walk` writes them; waits for this pass only."""
        if self._results is None:
            assert self._results_at is not None
            event = self._again or self._event
            if event is not None and not event.query():  # a wait gives up the interpreter's lock
                event.synchronize()
            self._results = self._results_at[: self._items].copy()
            if self._again_at is not None:
                self._results, self._unmasked = self._again_at[: self._items].copy(), self._results
            self._results_at = self._again_at = None
            self.awake = int(self._awake_at.sum())
        return self._results

    @property
    def states_shape(self) -> tuple[int, int] | None:
        """That of `states`, without a wait; None where there are none."""
        return None if self._states is None else (self._states.rows.shape[0], self._states.rows.shape[1])

    def states(self) -> Bits | None:
        """What the pass kept at the boundaries it was launched with: bits of bfloat16 [rows, boundaries * hidden].

        In the order of the plan's rows, or as it was asked to pack them. Waits for them. To be read before the second
        launch after the pass's own: the memory is used again. None where nothing was asked for, or it is gone. It is
        the same array each time.
        """
        if self._rows is None and self._states is not None:
            if self._states.event is not None:
                self._states.event.synchronize()
            self._rows = self._states.rows.view(torch.uint16).numpy()
        return self._rows

    @property
    def left(self) -> torch.cuda.Event | None:
        """Comes once `decided` and the states that the pass was to copy are on the device; None if they are there."""
        copied = None if self._states is None else self._states.copied
        return (self._again or self._event) if copied is None else copied

    def wait_for_copies(self) -> None:
        """Until the states that the pass was to copy on the device are there."""
        copied, self._copied = self._copied, None
        if copied is not None:
            copied.synchronize()

    def drop_states(self) -> None:
        """Another pass takes their place."""
        self._states = self._rows = self._copied = None

    @property
    def logits(self) -> torch.Tensor:
        """float32 [logits, vocab] on the device, in the order of the plan's `logit_rows`; see `PassPlan.keep_logits`.

        Raises ValueError where they are overwritten already.
        """
        if self._logits is None:
            raise ValueError("the logits of this pass are gone: another has been launched since, or two")
        return self._logits

    def wait_for_logits(self) -> None:
        """Let what is queued next on the current stream come after the logits."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._moved or self._event)

    def on_next_launch(self) -> None:
        """Called before each of the next two passes is queued: take the logits out of its way, or let go of them."""
        if self._logits is None or self._kept is None:
            self._logits = None
            return
        self._kept.copy_(self._logits, non_blocking=True)
        if self._event is not None:
            self._moved = torch.cuda.Event()
            self._moved.record()
        self._logits, self._kept = self._kept, None
