"""Counters of the gateway, as Prometheus shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from gateway.core.request import ChoiceRequest
from gateway.token_figures import TokenFigures
from slipstream.generation_types import FinishReason, Usage
from slipstream.rpc.metrics import keeping_names
from slipstream.rpc.vllm_metrics import GATEWAY_NAMES, with_vllm_names

_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_PAUSE_BUCKETS = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 45, 60, 120, 300)
_HOLD_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_EXEMPLAR_LABEL: Final = "request_id"
_MOST_EXEMPLAR_CHARACTERS: Final = 128
"""Of names and values of an exemplar's labels together, which OpenMetrics bounds."""


class Metrics:
    """Counted once a request or a pause; what is counted without locks is in `tokens`."""

    __slots__ = ("_duration", "_finished", "_first_token", "_hold", "_late", "_longest", "_longest_hold", "_pause",
                 "_published", "_requests", "_resumed", "_text_ends", "http_connections", "paused", "registry",
                 "running", "tokens", "verify_ready")  # fmt: skip

    def __init__(self) -> None:
        self.registry = self._published = registry = CollectorRegistry()
        self.tokens = TokenFigures()
        registry.register(self.tokens)
        self.running = Gauge("slipstream_gateway_running_choices", "Choices under way", registry=registry)
        self.verify_ready = Gauge("slipstream_gateway_verify_ready", "1 while a verify service is", registry=registry)
        self._requests = Counter(
            "slipstream_gateway_requests", "Requests by API and outcome", ("api", "outcome"), registry=registry
        )
        self.paused = Gauge(
            "slipstream_gateway_paused_choices", "Choices that wait for a verify service", registry=registry
        )
        self._resumed = Counter(
            "slipstream_gateway_resumed_choices", "Times a choice went on that had lost its service", registry=registry
        )
        self._pause = Histogram(
            "slipstream_gateway_pause_seconds",
            "From the loss of a choice's service to its next output",
            buckets=_PAUSE_BUCKETS,
            registry=registry,
        )
        self._finished = Counter(
            "slipstream_gateway_finished_choices", "Choices that ended", ("finished_reason",), registry=registry
        )
        self._first_token = Histogram(
            "slipstream_gateway_first_token_seconds",
            "Time to the first token",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self._duration = Histogram(
            "slipstream_gateway_request_seconds", "Duration of requests", buckets=_DURATION_BUCKETS, registry=registry
        )

        self._hold = Histogram(
            "slipstream_gateway_loop_hold_seconds",
            "Processor time for which the event loop served nobody else, where its heartbeat was 5 ms late or more",
            buckets=_HOLD_BUCKETS,
            registry=registry,
        )
        self._late = Histogram(
            "slipstream_gateway_loop_late_seconds",
            "How late the event loop's heartbeat was, where 5 ms or more",
            buckets=_HOLD_BUCKETS,
            registry=registry,
        )
        self.http_connections = Gauge(
            "slipstream_gateway_http_connections", "HTTP connections that are open", registry=registry
        )
        self._longest = 0.0
        self._longest_hold = Gauge(
            "slipstream_gateway_loop_longest_hold_seconds",
            "The longest of these holds since the start",
            registry=registry,
        )
        self._text_ends = Counter(
            "slipstream_gateway_text_worker_ends", "Text workers that were replaced", ("reason",), registry=registry
        )

    def publish_vllm_names(self, model_name: Callable[[], str]) -> None:
        """Render vLLM's names as well from now on; see `with_vllm_names`."""
        self._published = with_vllm_names(self.registry, GATEWAY_NAMES, model_name)

    def begin(self, requests: Sequence[ChoiceRequest]) -> None:
        """A request has been admitted."""
        self.running.inc(len(requests))
        self.tokens.choices.observe(len(requests))
        if (most := requests[0].sampling.max_tokens) is not None:
            self.tokens.max_tokens.observe(most)

    def end(self, usages: Sequence[Usage], first_token: float, duration: float, request_id: str = "") -> None:
        """An admitted request is over; `first_token` is 0 if there was none. Times in seconds.

        `request_id` becomes the exemplar of its times: what its line in the log has, too.
        """
        self.running.dec(len(usages))
        for usage in usages:
            self.tokens.count_prompt(usage.prompt_tokens, usage.cached_tokens)
        exemplar = _exemplar(request_id)
        if first_token:
            self._first_token.observe(first_token, exemplar)
        self._duration.observe(duration, exemplar)

    def finish(self, reasons: Iterable[FinishReason], per_token: Iterable[float | None]) -> None:
        """Choices of a request are over, for `reasons`; `per_token` are mean seconds between tokens of each."""
        for reason in reasons:
            self._finished.labels(reason.value).inc()
        for seconds in per_token:
            if seconds is not None:
                self.tokens.per_token.observe(seconds)

    def resumed(self, seconds: float) -> None:
        """A choice goes on, so long after it lost its service."""
        self._resumed.inc()
        self._pause.observe(seconds)

    def held(self, seconds: float, late: float) -> None:
        """The event loop was held for so many seconds of processor time, and its heartbeat `late` seconds late."""
        self._hold.observe(seconds)
        self._late.observe(late)
        if seconds > self._longest:
            self._longest = seconds
            self._longest_hold.set(seconds)

    def text_worker_ended(self, reason: str) -> None:
        """A text worker has ended, for `reason` ("deadline" or "crash")."""
        self._text_ends.labels(reason).inc()

    def answered(self, api: str, outcome: str) -> None:
        """A request of `api` ("http" or "grpc") was answered with `outcome`, its status code."""
        self._requests.labels(api, outcome).inc()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics and their media type: OpenMetrics where the header `accept` has it, else Prometheus's text."""
        encode, media_type = choose_encoder(keeping_names(accept))
        return encode(self._published), media_type


def _exemplar(request_id: str) -> dict[str, str] | None:
    """None where there is no id, or OpenMetrics has no room for it."""
    fits = 0 < len(request_id) <= _MOST_EXEMPLAR_CHARACTERS - len(_EXEMPLAR_LABEL)
    return {_EXEMPLAR_LABEL: request_id} if fits else None
