"""How a request comes in: checked, given its grammar, then queued; or answered why not."""

from __future__ import annotations

import time

from slipstream.rpc.errors import InvalidArgumentError, SlipstreamError, UnavailableError
from verify_service.core.request import GenerationRequest, RequestKey
from verify_service.core.request_state import RequestState
from verify_service.engine.command_queue import GrammarReady
from verify_service.engine.grammar_gate import GrammarGate
from verify_service.engine.output_processor import OutputProcessor
from verify_service.engine.request_output import end_output, refusal
from verify_service.scheduler.admission import Admission
from verify_service.scheduler.scheduler import Scheduler


class RequestEntry:
    """Writes `states`, the requests that are in the loop, and answers those that do not get there."""

    def __init__(
        self,
        admission: Admission,
        gate: GrammarGate,
        scheduler: Scheduler,
        states: dict[RequestKey, RequestState],
        outputs: OutputProcessor,
    ) -> None:
        self._admission = admission
        self._gate = gate
        self._scheduler = scheduler
        self._states = states
        self._outputs = outputs

    def enter(self, request: GenerationRequest, *, draining: bool) -> RequestState | None:
        """Queue a request, have it wait for its grammar, or answer why not.

        Return the queued request whose place it took, which is to end.
        """
        try:
            if draining:
                raise UnavailableError("the service drains and takes no new requests")
            if request.key in self._states:
                raise InvalidArgumentError(
                    f"request_id {request.key.request_id} is in use in this session", field="request_id"
                )
            state = self._admission.admit(request)
            if state.finish_reason is not None:
                self._outputs.append(end_output(state, state.finish_reason, time.monotonic()))
            elif self._gate.pass_through(state):
                return self._queue(state)
            else:
                self._states[state.key] = state
        except SlipstreamError as error:
            self._outputs.append(refusal(request, error))
        return None

    def open(self, ready: GrammarReady) -> RequestState | None:
        """Queue a request that waited for its grammar, or answer why not; return as `enter` does."""
        state = ready.state
        try:
            if self._gate.open(ready):
                del self._states[state.key]
                return self._queue(state)
        except SlipstreamError as error:
            self._states.pop(state.key, None)
            self._outputs.append(refusal(state.request, error))
        return None

    def _queue(self, state: RequestState) -> RequestState | None:
        displaced = self._scheduler.places.displace(state)
        self._states[state.key] = state
        self._scheduler.add(state)
        return displaced
