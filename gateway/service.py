"""What both APIs share: admission of requests, and the life of the process."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Final, Self

from gateway.access.access_log import AccessLog
from gateway.access.auth import ApiKeys
from gateway.access.request_tracing import RequestTracing
from gateway.config import GatewaySettings
from gateway.core.limits import (
    check_context,
    check_name,
    check_prompt_logprobs,
    check_sampling,
    check_speculation,
    check_stop,
)
from gateway.core.request import ChoiceRequest, ServedAdapter, VerifyInfo
from gateway.core.sampling_defaults import completed, read_defaults
from gateway.drafters.drafter_wait import DrafterWait
from gateway.generation.generation import FieldNames, Generation, GenerationContext, Running
from gateway.generation.traced_choices import TracedChoices
from gateway.loop_monitor import LoopMonitor
from gateway.metrics import Metrics
from gateway.replicas.replica import Replica
from gateway.replicas.replica_figures import ReplicaFigures
from gateway.replicas.routing import policy_named
from gateway.replicas.verify_client import VerifyClient
from gateway.text.in_process.small_requests import SmallRequests
from gateway.text.pool import TextWorkers
from gateway.text.prepared import Prepared, WorkerTask
from gateway.tokens.tokenizer import Tokenizer
from slipstream.adapter_names import check_adapter_name
from slipstream.directory.client import open_directory
from slipstream.rpc.errors import InvalidArgumentError, PermissionDeniedError, UnavailableError
from slipstream.tracing.opening import open_tracer
from slipstream.tracing.tracer import Tracer

_log = logging.getLogger(__name__)

READY: Final = "ready"
"""The status of a gateway that takes requests."""

_LAST_WORDS_SECONDS: Final = 1.0
"""What readers get to pass on the error of a request that the drain has cut short."""

_LAST_SPANS_SECONDS: Final = 2.0
"""How long sending them may take at the end."""

_LENGTHS_SHOWN: Final = 8

_SEED_BITS: Final = 53
"""Of a seed that the gateway draws; JSON numbers carry that many exactly."""


class Gateway:
    """Turns requests of either API into generations on a verify service."""

    __slots__ = ("_backend", "_defaults", "_directory", "_drafters", "_draining", "_monitor", "_running", "_small",
                 "_tracer", "access_log", "client", "keys", "metrics", "settings", "text", "tokenizer",
                 "tracing")  # fmt: skip

    def __init__(self, settings: GatewaySettings, metrics: Metrics, text: TextWorkers, tracer: Tracer) -> None:
        """`text` has been started: so what the model's folder says about texts has been read once, within limits."""
        self.settings = settings
        self.text = text
        self.tokenizer = Tokenizer(settings.model)
        self._small = SmallRequests(settings, self.tokenizer)
        self._defaults = read_defaults(settings.model, settings.generation_config)
        self.keys = ApiKeys.from_file(settings.api_keys_file)
        self.metrics = metrics
        self.tracing = RequestTracing(tracer, vllm_names=settings.trace_names == "vllm")
        self.access_log = AccessLog(enabled=settings.access_log, on_end=self.tracing.end)
        self._tracer = tracer
        self._monitor = LoopMonitor(metrics, settings.loop_monitor_ms / 1e3)
        self.client = VerifyClient(
            settings.first_verify,
            timeout=settings.connect_timeout,
            resume_seconds=settings.resume_seconds,
            metrics=self.metrics,
            policy=policy_named(settings.routing),
            connect=functools.partial(Replica, tls=settings.tls),
        )
        metrics.registry.register(ReplicaFigures(lambda: self.client.replicas, settings.routing))
        self._directory: asyncio.Task[None] | None = None
        self._drafters = DrafterWait(self.client, settings.wait_for_drafter)
        if settings.metrics_names == "vllm":
            metrics.publish_vllm_names(lambda: self.client.model_name)
        self._draining = False
        self._running = Running()
        self._backend = GenerationContext(
            self.tokenizer,
            self.client,
            self.metrics,
            self._running,
            max_buffered=settings.max_buffered_steps,
            traced=TracedChoices(settings.max_traced_choices),
        )

    @classmethod
    async def load(cls, settings: GatewaySettings) -> Self:
        """A gateway with its text workers.

        FailedPreconditionError if tokenizer or template cannot be used, or requests cannot be traced as a flag asks.
        """
        metrics = Metrics()
        text = TextWorkers(settings, metrics.text_worker_ended)
        await text.start()
        return cls(settings, metrics, text, open_tracer("slipstream-gateway", settings.otlp_traces_endpoint))

    async def start(self) -> None:
        """Connect to the verify services in the background."""
        self._monitor.start()
        await self.client.start()
        if self.settings.directory:
            self._directory = asyncio.create_task(self._follow_directory(), name="directory")
        self._drafters.start()

    async def close(self) -> None:
        """End all sessions and all text workers."""
        self._monitor.stop()
        await self._drafters.stop()
        if self._directory is not None:
            self._directory.cancel()
            await asyncio.gather(self._directory, return_exceptions=True)
        await self.client.close()
        await self.text.close()
        await asyncio.to_thread(self._tracer.close, _LAST_SPANS_SECONDS)

    async def _follow_directory(self) -> None:
        async for members in open_directory(self.settings.directory, self.settings.tls).watch():
            self.client.update(members)

    @property
    def status(self) -> str:
        """READY where new requests are to be sent, or else the reason why not."""
        if self._draining:
            return "draining"
        if not self.client.ready:
            return "no verify service is ready"
        if not self.text.ready:
            return "the text workers are not ready"
        return READY if self._drafters.over else "waiting for proposers to be attached"

    @property
    def ready(self) -> bool:
        """Whether new requests are to be sent here."""
        return self.status == READY

    def check_draining(self) -> None:
        """UnavailableError once a drain has begun."""
        if self._draining:
            raise UnavailableError("the gateway is shutting down; retry elsewhere")

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and wait for the running ones, then cancel those that are left."""
        self._draining = True
        if not await self._running.wait_idle(seconds):
            for generation in self._running:
                generation.abandon(UnavailableError("the gateway is shutting down"))
            await self._running.wait_idle(_LAST_WORDS_SECONDS)

    def model(self) -> VerifyInfo:
        """Facts of the model served. UnavailableError while no requests are taken."""
        self.check_draining()
        return self.client.info

    async def load_adapter(self, name: str, path: str) -> ServedAdapter:
        """Have all verify services load a LoRA adapter. PermissionDeniedError unless the operator allows it."""
        self._check_adapters_allowed()
        info = self.model()
        check_adapter_name(name, "name")
        if name == info.model_name:
            raise InvalidArgumentError(f"name is {name!r}, which is the model's own", field="name")
        return await self.client.adapters.load(self.client.usable, name, path)

    async def unload_adapter(self, name: str) -> None:
        """Have all verify services let go of a LoRA adapter; see `load_adapter`."""
        self._check_adapters_allowed()
        self.model()
        await self.client.adapters.unload(self.client.usable, name)

    def _check_adapters_allowed(self) -> None:
        if not self.settings.allow_lora_updates:
            raise PermissionDeniedError("LoRA adapters are loaded and unloaded here only with --allow-lora-updates")

    async def prepare(self, job: WorkerTask, payload: bytes | bytearray, info: VerifyInfo) -> Prepared:
        """Read a request and tokenise its prompts: here if that is cheap, else in a text worker.

        InvalidArgumentError naming the field, NotFoundError, and those of `TextWorkers`.
        """
        return self._small.prepare(job, payload, info) or await self.text.prepare(job, payload, info)

    def open(
        self,
        requests: Sequence[ChoiceRequest],
        info: VerifyInfo,
        *,
        prompt_field: str,
        prefix: str = "",
        grammar_field: str = "",
    ) -> Generation:
        """Check the choices of one request and make it ready to run.

        Their prompts have been read by `prepare`. All choices share their sampling parameters. A request without
        a seed is given one, and what else it leaves open is settled by the model's own defaults. `prefix` is put
        before the names of sampling parameters in errors. Raises InvalidArgumentError naming the field,
        UnavailableError.
        """
        self.check_draining()
        first = requests[0]
        check_sampling(first.sampling, info, prefix=prefix)
        check_stop(first.stop)
        check_name("tenant", first.tenant)
        check_name("adapter_id", first.adapter_id)
        if first.speculation is not None:
            check_speculation(first.speculation)
        self._backend.traced.check(requests)
        for request in requests:
            check_context(len(request.prompt_token_ids), request.sampling, info, field=prompt_field, prefix=prefix)
        check_prompt_logprobs(requests, prefix=prefix)
        seed = secrets.randbits(_SEED_BITS) if first.sampling.seed is None else first.sampling.seed
        asked, weight = replace(first.sampling, seed=seed), self.keys.weight_of(first.tenant)
        requests = [
            replace(
                request, sampling=completed(asked, self._defaults, len(request.prompt_token_ids), info), weight=weight
            )
            for request in requests
        ]
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("a request begins: %s", _described(requests))
        return Generation(requests, info, seed, self._backend, FieldNames(prompt_field, prefix, grammar_field))


def _described(requests: Sequence[ChoiceRequest]) -> str:
    """What a request asks for, without its texts: prompts and stop strings."""
    first = requests[0]
    given = {field.name: getattr(first.sampling, field.name) for field in fields(first.sampling)}
    given["grammar"] = None if first.sampling.grammar is None else first.sampling.grammar.kind
    chosen = [f"{name}={value!r:.80}" for name, value in given.items() if value not in (None, (), {}, False)]
    lengths = ",".join(str(len(request.prompt_token_ids)) for request in requests[:_LENGTHS_SHOWN])
    speculation = "default" if first.speculation is None else f"{first.speculation!r:.200}"
    return f"choices={len(requests)} prompt_tokens={lengths} speculation={speculation} {' '.join(chosen)}"
