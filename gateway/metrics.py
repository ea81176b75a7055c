"""Counters of the gateway, as Prometheus shows them."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.request import ChoiceRequest
from slipstream.generation_types import Usage

_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_PAUSE_BUCKETS = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 45, 60, 120, 300)
_HOLD_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counted once a request or a pause, never once a token."""

    __slots__ = ("_accepted", "_completion", "_drafted", "_duration", "_first_token", "_hold", "_late", "_longest",
                 "_longest_hold", "_pause", "_prompt", "_requests", "_resumed", "_steps", "_text_ends",
                 "http_connections", "paused", "registry", "running", "verify_ready")  # fmt: skip

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
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
        self._prompt = Counter("slipstream_gateway_prompt_tokens", "Prompt tokens", registry=registry)
        self._completion = Counter("slipstream_gateway_completion_tokens", "Output tokens", registry=registry)
        self._steps = Counter("slipstream_gateway_verify_steps", "Verify steps of all outputs", registry=registry)
        self._drafted = Counter("slipstream_gateway_drafted_tokens", "Drafted tokens verified", registry=registry)
        self._accepted = Counter("slipstream_gateway_accepted_tokens", "Drafted tokens accepted", registry=registry)
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

    def begin(self, requests: Sequence[ChoiceRequest]) -> None:
        """A request has been admitted."""
        self.running.inc(len(requests))

    def end(self, usages: Sequence[Usage], first_token: float, duration: float) -> None:
        """An admitted request is over; `first_token` is 0 if there was none. Times in seconds."""
        self.running.dec(len(usages))
        self._prompt.inc(sum(usage.prompt_tokens for usage in usages))
        self._completion.inc(sum(usage.completion_tokens for usage in usages))
        self._steps.inc(sum(usage.verify_steps for usage in usages))
        self._drafted.inc(sum(usage.drafted_tokens for usage in usages))
        self._accepted.inc(sum(usage.accepted_tokens for usage in usages))
        if first_token:
            self._first_token.observe(first_token)
        self._duration.observe(duration)

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

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
