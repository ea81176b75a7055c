"""One choice's stream of outputs, which resumes on another verify service when one goes away."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.core.request import ChoiceRequest, StepOutput, VerifyInfo
from slipstream.generation_types import FinishReason, Timings
from slipstream.rpc.errors import SlipstreamError

if TYPE_CHECKING:
    from gateway.core.prompt_logprobs import PromptLogprobs
    from gateway.replicas.replica import Replica


MOST_RESUMES: Final = 64
"""That are remembered of one stream."""


class Resumed(NamedTuple):
    """A stream went on, at time.monotonic() in seconds, from one service's address at another's; `position`: tokens."""

    at: float
    former: str
    later: str
    position: int


class ResumableStream:
    """A choice, with the state to resume it on another service of the same model.

    `deliver` is called with each output, the last one finished. Outputs read as those of one service: no token repeats,
    nor any of the prompt's logprobs, and the prompt's cached tokens and the times count from the first submission. The
    request's seed is set, without which another service could go on differently. All times are time.monotonic() in
    seconds.
    """

    __slots__ = ("_began", "_cached_tokens", "_first_token", "_kept", "_lost_at", "begun", "deliver", "losses",
                 "origin", "paused_at", "reason", "received", "replica", "request", "request_id", "resumes", "scored",
                 "sent_at", "yielded")  # fmt: skip

    def __init__(self, request: ChoiceRequest, deliver: Callable[[StepOutput], None]) -> None:
        assert request.sampling.seed is not None
        self.request = request
        self.deliver = deliver
        self.received: list[int] = []  # token ids so far
        self.scored = 1  # tokens of the prompt that are past as far as logprobs go: the first has none
        self.origin: VerifyInfo | None = None  # of the service that its tokens came from, or are to come from
        self.losses = 0  # services that went away, or gave it back, when they had taken it
        self.paused_at = 0.0  # when it was lost first, or began to wait, since its last output; 0.0 while outputs come
        self.reason: SlipstreamError | None = None  # why it was lost, or waits
        self.resumes: list[Resumed] = []
        self._lost_at = ""  # address of the service that it has left, until it is sent to one again
        self.replica: Replica | None = None
        self.request_id = 0
        self.sent_at = 0.0  # when it was submitted last
        self.begun = False  # whether the service has said that it runs since then
        self.yielded = False  # whether a token of it has come since then
        self._kept = 0  # tokens received when it was lost last
        self._cached_tokens: int | None = None
        self._began = self._first_token = 0.0

    @property
    def proposer(self) -> str:
        """The proposer that the request names; empty if none."""
        return "" if self.request.speculation is None else self.request.speculation.proposer

    @property
    def bound(self) -> bool:
        """Whether outputs have come, so that only the same build may continue."""
        return bool(self.received) or self.scored > 1

    def fits(self, info: VerifyInfo) -> bool:
        """Return whether a service can continue it: the same model and adapter, and the same build once bound."""
        if not self.is_adapted(info):
            return False
        if self.origin is None:
            return True
        return info.continues(self.origin) if self.bound else info.fingerprint == self.origin.fingerprint

    def is_adapted(self, info: VerifyInfo) -> bool:
        """Return whether a service has loaded the request's adapter, if it has one."""
        return not self.request.adapter_id or info.adapter(self.request.adapter_id) is not None

    def send(self, replica: Replica, request_id: int) -> None:
        """Note the submission to `replica`."""
        if self._lost_at and len(self.resumes) < MOST_RESUMES:
            self.resumes.append(Resumed(time.monotonic(), self._lost_at, replica.address, len(self.received)))
        self._lost_at = ""
        self.replica, self.request_id = replica, request_id
        if not self.bound:
            self.origin = replica.info
        self.begun = self.yielded = False
        self.sent_at = time.monotonic()
        self._began = self._began or self.sent_at

    def take_scores(self, scores: PromptLogprobs) -> None:
        """Deliver logprobs of the prompt, as far as no other service has told them before."""
        fresh = scores.since(self.scored)
        if fresh is not None:
            self.scored = fresh.end
            self.deliver(StepOutput([], prompt_logprobs=fresh))

    def receive(self, output: StepOutput) -> None:
        """Record an output, and rewrite its usage and times to continue those before."""
        self.received += output.token_ids
        if not self._first_token:
            self._first_token = time.monotonic()
        if output.cached_tokens is not None:
            if self._cached_tokens is None:
                self._cached_tokens = output.cached_tokens
            output.cached_tokens = self._cached_tokens
        if output.timings is not None and self.losses:
            output.timings = self._continued(output.timings)

    def on_lost(self, reason: SlipstreamError) -> None:
        """Note that its service has gone, or has given it back."""
        self.losses += 1
        self.move()
        self._kept = len(self.received)
        self.wait(reason)

    def move(self) -> None:
        """Note that it leaves its service, and goes on at another one."""
        self._lost_at = "" if self.replica is None else self.replica.address

    def wait(self, reason: SlipstreamError) -> None:
        """Note that no service has it."""
        self.reason = reason
        self.paused_at = self.paused_at or time.monotonic()

    def resume(self) -> None:
        """Note that outputs come again."""
        self.paused_at, self.reason = 0.0, None

    def forget_proposer(self) -> None:
        """Speculate as the operator's default says. Proposers change speed and no token."""
        if self.request.speculation is not None:
            self.request = replace(self.request, speculation=replace(self.request.speculation, proposer=""))

    def fail(self, error: SlipstreamError) -> None:
        """End the choice with an error."""
        self.deliver(StepOutput([], finish_reason=FinishReason.ERROR, error=error))

    def _continued(self, timings: Timings) -> Timings:
        """Times since the first submission; how long a choice queued is not known of a service that has gone."""
        earlier = self.sent_at - self._began
        if self._kept:
            return Timings(0.0, self._first_token - self._began, earlier + timings.total)
        return Timings(earlier + timings.queued, earlier + timings.first_token, earlier + timings.total)
