"""What grammars have a say in of a GPU's steps: masks reach the pass that they are for, the host checks the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from slipstream_kernels.models.gpu.forward.masked_sampling import MaskedRows
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.grammar.together import Together
from verify_service.model_runner.constrained_path import ConstrainedPath, MaskedRow, decide
from verify_service.model_runner.masks_ahead import MaskPace, MasksAhead

if TYPE_CHECKING:
    from slipstream_kernels.models.gpu.batch.buckets import Bucket
    from slipstream_kernels.models.gpu.gpu_model import GpuModel, PassHandle

_WORTH = 4
"""Part of a step's requests that are to gain by a second way to the device, which takes about an eighth of a step."""
_LEARNED = 0.2
"""Weight of the newest step in what is known of times."""
TOKENS = 66
"""Column of a ticket's results at which committed tokens begin."""


class GpuConstraint:
    """Used by the loop's thread.

    While a pass runs masks are computed, and sent; behind it rows are sampled under them, and walks are taken again. So
    results come back once. The host follows these walks: a token that was sampled without a mask and is illegal, or of
    a request with filters, is sampled again in a second way to the device, where that is worth it: of a root always.
    """

    def __init__(self, model: GpuModel, begin: Callable[[RequestState], None]) -> None:
        """`begin` sets a request's line on the device by its output so far."""
        self._model = model
        self._begin = begin
        self._able = model.decides_again
        words = -(-model.config.vocab_size // 32)
        self._room = model.mask_rows if self._able else np.empty((model.limits.max_running, words), np.uint32)
        self._together = Together.beside()
        self._pace = MaskPace()
        self._passes: dict[Bucket, float] = {}
        """Seconds that passes of a shape take, by the device's clock."""
        self._sending = 0.0
        """Seconds from the last mask to the end of `send`."""
        self._between = 0.0
        """Seconds from `begin_masks` to `send`."""
        self.seconds = GrammarSeconds()

    def gives_masks(self, state: RequestState) -> bool:
        """Whether a request's rows are sampled under masks alone, behind the pass: those with filters."""
        return self._able and state.grammar is not None and state.parameters.sampling.is_filtered

    def masks_for(self, deciding: Sequence[ScheduledRequest]) -> MasksAhead | None:
        """The masks that a step is to have; None where nothing in it has a grammar.

        Where any request strays, a second way is likely, which all would wait for: then all roots get masks.
        """
        held = [grammar for item in deciding if (grammar := item.state.grammar) is not None]
        if not held:
            return None
        all_roots = self._able and any(grammar.strays for grammar in held)
        return MasksAhead(deciding, self._room, self._together, self._pace, all_roots=all_roots)

    def decides_again(self, ahead: MasksAhead | None) -> bool:
        """Whether `send` is to follow the launch."""
        return self._able and ahead is not None

    def begin_masks(self, ticket: PassHandle, ahead: MasksAhead) -> None:
        """Compute masks of roots, and of nodes with them, before `send`, between which the loop does other work."""
        if not ahead.sent:
            until = self._until(ticket, ahead)
            ahead.compute(ticket.done, None if until is None else until - self._between, of_roots=True)
            ahead.begun_at = time.perf_counter()

    def _until(self, ticket: PassHandle, ahead: MasksAhead) -> float | None:
        """By when masks are to be there so that they can be sent before the pass is over, as far as is known."""
        expected = self._passes.get(ticket.bucket) if self._passes else None
        return None if expected is None else ahead.launched_at + expected - self._sending

    def send(
        self,
        ticket: PassHandle,
        ahead: MasksAhead,
        deciding: Sequence[ScheduledRequest],
        first_rows: Sequence[int],
        *,
        patient: bool = True,
    ) -> None:
        """Compute masks while the pass runs, and queue what they change behind it; once, other calls do nothing.

        Roots are waited for, as a second way to the device takes longer. Nothing else is: masks of nodes are begun only
        if they are expected to be there, and sent, before the pass is over. Not `patient`: one batch is computed.
        """
        if ahead.sent:
            return
        ahead.sent = True
        if ahead.begun_at:
            self._between += _LEARNED * (time.perf_counter() - ahead.begun_at - self._between)
        over = ticket.done if patient else lambda: ahead.taken > 0 or ticket.done()
        late_seconds = ahead.compute(over, self._until(ticket, ahead))
        if not self._able:
            self.seconds.masks += late_seconds
            return
        began, late = time.perf_counter(), ticket.done()
        ahead.finish(all_roots=True)
        rows = np.full(ahead.taken, -1, np.int32)
        for item, first in zip(deciding, first_rows, strict=True):
            if masked := ahead.rows_of(item):
                rows[[*masked.values()]] = [first + row for row in masked]
                ahead.sampled_anew += 0 if item.state.parameters.sampling.is_filtered else len(masked)
                if is_penalised(item.state):
                    self._begin(item.state)  # its output counts are those before the step again
        ahead.sampled = int((rows >= 0).sum())
        self._model.decide_again(ticket, rows if ahead.sampled else rows[:0])
        took = time.perf_counter() - began
        self._sending += _LEARNED * (took - self._sending)
        if ticket.times is None or not ahead.sampled:  # else the device's clock tells
            self.seconds.masks += late_seconds + (took if late or ticket.done() else 0.0)

    def results(self, ticket: PassHandle, ahead: MasksAhead, deciding: Sequence[ScheduledRequest]) -> np.ndarray:
        """Wait for the pass and what follows it.

        Meanwhile grammars follow the output so far: those without masks need not do so once the tokens are there.
        """
        held = [
            behind for item in deciding if not item.state.finished and (behind := item.state.unfollowed) is not None
        ]
        began, late = time.perf_counter(), ticket.done()
        self._together.follow(held)
        for grammar, output in held:
            with suppress(Exception):  # told when the step is decided
                grammar.follow_output(output)
        self.seconds.checks += late * (time.perf_counter() - began)
        if ticket.times is None:
            ticket.wait()
            began = time.perf_counter()
            results = ticket.results()
            self.seconds.masks += time.perf_counter() - began
            return results
        results = ticket.results()
        self._learn(ticket, ahead)
        return results

    def _learn(self, ticket: PassHandle, ahead: MasksAhead) -> None:
        """Take in what the device's clock tells of a pass that is over, and of what was queued behind it."""
        if ticket.times is None:
            return
        busy, bucket = ticket.times.seconds().busy, ticket.bucket
        self._passes[bucket] = busy + (1 - _LEARNED) * (self._passes.get(bucket, busy) - busy)
        behind = ticket.again_seconds()
        if behind is not None and ahead.sampled:
            anew = ahead.sampled_anew / ahead.sampled
            self.seconds.masks += behind.waited + anew * behind.busy
            self.seconds.samples += (1 - anew) * behind.busy

    def follow(self, ticket: PassHandle, ahead: MasksAhead, decisions: list[VerifyResult]) -> None:
        """Decide anew what grammars have a say in: the device's path, as far as they follow it.

        Requests that have ended since the launch have no line any more, and nothing is decided of them.
        """
        held: list[tuple[int, ConstrainedPath]] = []
        unmasked = ticket.unmasked()
        for place, (item, (nodes, tokens), first_row, _) in enumerate(decisions):
            if (grammar := item.state.grammar) is not None and not item.state.finished:
                sampled = dict(zip((0, *(1 + node for node in nodes)), tokens, strict=True))
                masked = ahead.rows_of(item) if self._able else ()
                path = ConstrainedPath(item, grammar, first_row, sampled, ahead.of(item), masked)
                if unmasked is not None and 0 in masked:
                    path.note_unmasked(int(unmasked[place, TOKENS]))
                held.append((place, path))
                if is_penalised(item.state):
                    self._begin(item.state)

        def sample_masked(rows: Sequence[MaskedRow]) -> Sequence[int]:
            numbers = np.array([each.row for each in rows], np.int32)
            return self._model.sample_masked(ticket, MaskedRows(numbers, np.stack([each.words for each in rows])))

        def is_worth(waiting: int) -> bool:
            return _WORTH * waiting >= len(decisions)

        decided = decide([path for _, path in held], sample_masked, self.seconds, is_worth, self._together)
        for (place, _), decision in zip(held, decided, strict=True):
            decisions[place] = decision


def is_penalised(state: RequestState) -> bool:
    """Return whether a request's tokens depend on how often each was output."""
    params = state.parameters.sampling
    penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
    return penalties != (1.0, 0.0, 0.0)
