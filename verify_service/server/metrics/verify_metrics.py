"""Prometheus metrics of the verify service. Names follow vLLM's where a metric means the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slipstream.bucket_counts import PositionCounts
from slipstream.generation_types import Timings
from slipstream.rpc.metrics import histogram_family, position_family
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.core.request import StepOutput
from verify_service.draft_link.link_state import DrafterState, LinkState
from verify_service.engine.loop_stats import LoopState
from verify_service.server.metrics.adapter_metrics import adapter_metrics
from verify_service.server.metrics.expert_metrics import expert_metrics
from verify_service.server.metrics.forecast_metrics import forecast_metrics

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_ACCEPTED = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_WAITS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1)


class VerifyMetrics:
    """Histograms that are fed, and counters read from `state` when scraped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"slipstream_{name}", text, buckets=buckets, registry=registry)

        self._registry = registry
        self._first_token = histogram("time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        self._per_token = histogram("time_per_output_token_seconds", "Mean time between a request's tokens.", _SECONDS)
        self._latency = histogram("e2e_request_latency_seconds", "From arrival to the last token.", _SECONDS)
        self._queued = histogram("request_queue_time_seconds", "From arrival to the first step.", _SECONDS)
        self._prefill = histogram("request_prefill_time_seconds", "From the first step to the first token.", _SECONDS)
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last one.", _SECONDS)
        self._inference = histogram(
            "request_inference_time_seconds", "From the first step to the last token.", _SECONDS
        )
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._generated = histogram("request_generation_tokens", "Tokens output for a request.", _TOKENS)
        self._accepted = histogram("step_tokens", "Tokens one verify step yields for one request.", _ACCEPTED)
        self._batch = histogram("step_batch_size", "Requests that one step yields tokens for.", _BATCH)
        self._draft_wait = histogram("draft_wait_seconds", "Time a step waited for trees.", _WAITS)
        self._finished = Counter(
            "slipstream_request_success", "Requests that ended.", ["finished_reason"], registry=registry
        )
        self._prompt_tokens = Counter("slipstream_prompt_tokens", "Prompt tokens of ended requests.", registry=registry)
        self._positions = PositionCounts()

    def watch(self, loop: Callable[[], LoopState], link: Callable[[], LinkState], adapter_slots: int = 0) -> None:
        """Publish the counters of the loop and of the draft link from now on; adapters' where there is room for any."""
        self._registry.register(_Counters(loop, link, self._positions, adapter_slots))

    def cache_config(self, dtype: str, page_size: int, num_pages: int) -> None:
        """How keys and values are held, once that is settled."""
        info = Info("slipstream_cache_config", "How keys and values are held.", registry=self._registry)
        info.info({"cache_dtype": dtype, "page_size": str(page_size), "num_pages": str(num_pages)})

    def draft_wait(self, seconds: float) -> None:
        """A step has waited for trees."""
        self._draft_wait.observe(seconds)

    def step(self, outputs: Iterable[StepOutput]) -> None:
        """What one step yielded."""
        batch = 0
        for output in outputs:
            if output.token_ids:
                batch += 1
                self._accepted.observe(len(output.token_ids))
            if output.step is not None:
                self._positions.count(output.step.drafted, output.step.accepted)
            if output.finish_reason is not None:
                self._finish(output)
        if batch:
            self._batch.observe(batch)

    def _finish(self, output: StepOutput) -> None:
        assert output.finish_reason is not None
        self._finished.labels(output.finish_reason.value).inc()
        if output.usage is None or output.timings is None:
            return
        usage, timings = output.usage, output.timings
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._prompt.observe(usage.prompt_tokens)
        self._generated.observe(usage.completion_tokens)
        self._observe_times(timings)
        if timings.first_token and usage.completion_tokens > 1:
            self._per_token.observe((timings.total - timings.first_token) / (usage.completion_tokens - 1))

    def _observe_times(self, timings: Timings) -> None:
        self._latency.observe(timings.total)
        self._queued.observe(timings.queued)
        if timings.first_token:
            self._first_token.observe(timings.first_token)
            self._prefill.observe(timings.first_token - timings.queued)
            self._decode.observe(timings.total - timings.first_token)
            self._inference.observe(timings.total - timings.queued)


class _Counters(Collector):
    """Reads both states once a scrape."""

    def __init__(
        self,
        loop: Callable[[], LoopState],
        link: Callable[[], LinkState],
        positions: PositionCounts,
        adapter_slots: int,
    ) -> None:
        self._adapter_slots = adapter_slots
        self._loop = loop
        self._link = link
        self._positions = positions

    def collect(self) -> Iterator[Metric]:
        loop, link = self._loop(), self._link()
        used = loop.pages_total - loop.pages_free - loop.pages_cached
        gauges = (
            ("num_requests_running", "Requests in the batch.", loop.running),
            ("num_requests_waiting", "Requests in the queue.", loop.queued),
            ("kv_cache_usage_perc", "Share of KV pages that requests hold, 0 to 1.", used / max(1, loop.pages_total)),
            ("kv_pages_total", "KV pages.", loop.pages_total),
            ("kv_pages_free", "KV pages that nobody holds.", loop.pages_free),
            ("kv_pages_cached", "KV pages that only the prefix cache holds.", loop.pages_cached),
            ("tenants", "Tenants with requests that run or wait.", loop.tenants),
            ("feature_boundaries", "Boundaries whose hidden states are captured.", loop.feature_boundaries),
            ("feature_pages", "KV pages beside which hidden states are kept.", loop.feature_pages),
            ("draft_attachments", "Draft services attached.", link.attachments),
            ("draft_refused_proposers", "Proposers of draft services that do not fit the model.", link.refused),
            ("draft_deadline_seconds", "Longest wait of a step for trees at the moment.", link.deadline),
        )
        counters = (
            ("steps", "Verify steps.", loop.steps),
            ("generation_tokens", "Tokens committed.", loop.committed_tokens),
            ("num_preemptions", "Requests preempted because pages ran out.", loop.preemptions),
            ("share_displaced_requests", "Queued requests refused for another tenant's share.", loop.displaced),
            ("share_cut_nodes", "Drafted nodes left out of passes for another tenant's share.", loop.cut_nodes),
            (
                "prefix_cache_queries",
                "Prompt tokens whose KV came from the prefix cache or was computed.",
                loop.prefix_hit_tokens + loop.prompt_tokens,
            ),
            ("prefix_cache_hits", "Prompt tokens whose KV came from the prefix cache.", loop.prefix_hit_tokens),
            ("spec_decode_num_drafts", "Steps with drafted tokens, of each request.", self._positions.drafts),
            ("spec_decode_num_draft_tokens", "Drafted tokens verified.", loop.drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Drafted tokens accepted.", loop.accepted_tokens),
            ("draft_waits", "Steps that waited for trees.", link.waits),
            ("draft_misses", "Trees that were not there at the deadline.", link.misses),
            ("draft_stale_records", "Records dropped for their stamp.", link.stale),
            ("draft_malformed_records", "Records that cost their sender the attachment.", link.malformed),
            ("draft_gaps", "Slots that lost their feed to a slow drafter.", link.gaps),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"slipstream_{name}", text, value=value)
        for name, text, value in counters:
            yield CounterMetricFamily(f"slipstream_{name}", text, value=value)
        yield position_family(
            "slipstream_spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens accepted, by their place after the last token.",
            self._positions,
        )
        if loop.step_rows is not None:
            yield histogram_family("slipstream_step_rows", "Rows of a verify step.", loop.step_rows)
        if loop.step_seconds is not None:
            yield histogram_family("slipstream_step_seconds", "Time a verify step took the model.", loop.step_seconds)
        if loop.grammar_seconds is not None:
            yield _grammar_metric(loop.grammar_seconds)
        yield from forecast_metrics(loop.forecast)
        if loop.experts is not None:
            yield from expert_metrics(loop.experts)
        if self._adapter_slots:
            yield from adapter_metrics(loop.adapters, self._adapter_slots)
        yield from _drafter_metrics(link.drafters)


def _grammar_metric(seconds: GrammarSeconds) -> Metric:
    text = "Time that steps waited for grammars, by what of: drafts, checks, masks or samples."
    family = CounterMetricFamily("slipstream_grammar_seconds", text, labels=("part",))
    for part, value in asdict(seconds).items():
        family.add_metric((part,), value)
    return family


def _drafter_metrics(drafters: Sequence[DrafterState]) -> Iterator[Metric]:
    """The counters of each proposer of each live attachment, and of each attachment what is not told by proposer."""
    names = ("epoch", "drafter", "proposer", "transport")
    labels = [(str(each.epoch), each.name, each.proposer, each.transport) for each in drafters]
    for field, text in (
        ("requests", "Requests drafted for, those included that it has yet to take over."),
        ("catching_up", "Requests that the draft service has yet to take over."),
        ("share", "Part of all requests that the draft service is due."),
    ):
        gauge = GaugeMetricFamily(f"slipstream_drafter_{field}", text, labels=names)
        for state, label in zip(drafters, labels, strict=True):
            gauge.add_metric(label, getattr(state, field))
        yield gauge
    for field, text in (
        (
            "answer",
            "Time within which trees come after they are asked for, as lately seen; none before any has come.",
        ),
        ("deadline", "Longest wait for its trees of a step whose requests all insist on trees."),
    ):
        gauge = GaugeMetricFamily(f"slipstream_drafter_{field}_seconds", text, labels=names)
        for state, label in zip(drafters, labels, strict=True):
            if (seconds := getattr(state, field)) is not None:
                gauge.add_metric(label, seconds)
        yield gauge
    for field, text in (
        ("hits", "Trees that were there when a step asked for them."),
        ("waits", "Steps that waited for trees."),
        ("misses", "Trees that a step waited for in vain."),
        ("late", "Trees that came when their step had begun."),
        ("drafted", "Tokens of its trees that steps verified."),
        ("accepted", "Those of them that were accepted."),
        ("handed", "Trees that steps took on the device, before any host knew them."),
        ("unmade", "Trees that steps were launched for and the drafter did not make."),
        ("partial_sessions", "Requests taken up without older hidden states that the proposer wanted."),
    ):
        family = CounterMetricFamily(f"slipstream_drafter_{field}", text, labels=names)
        for state, label in zip(drafters, labels, strict=True):
            family.add_metric(label, getattr(state.stats, field))
        yield family
    stale = CounterMetricFamily(
        "slipstream_drafter_stale_records",
        "Records dropped for their stamp, whatever their proposer; late trees are among them.",
        labels=("epoch", "drafter", "transport"),
    )
    for epoch, state in {each.epoch: each for each in drafters}.items():
        stale.add_metric((str(epoch), state.name, state.transport), state.stale)
    yield stale
    for field, text in (
        ("drafted", "Tokens of trees of several proposers, by the one that each is counted for."),
        ("accepted", "Tokens of such trees that were right, by the one that each is counted for."),
    ):
        family = CounterMetricFamily(f"slipstream_drafter_source_{field}", text, labels=(*names, "source"))
        for state, label in zip(drafters, labels, strict=True):
            for count in state.stats.sources.values():
                family.add_metric((*label, count.proposer), getattr(count, field))
        yield family
