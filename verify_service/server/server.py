"""The life of the verify service: listen, load the model, serve it, drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial

import grpc
from prometheus_client import CollectorRegistry

from slipstream import __version__
from slipstream.grammar.tokenizer import load_tokenizer
from slipstream.rpc.lifecycle import run_until_terminated
from slipstream.rpc.metrics import serve_metrics
from slipstream.rpc.server import GrpcServer
from slipstream.rpc.vllm_metrics import VERIFY_NAMES, with_vllm_names
from slipstream.tracing.opening import open_tracer
from slipstream_kernels.draft_protocol.proposer_host import ProposerHost
from slipstream_kernels.ipc.cuda_driver import is_mps_client
from slipstream_kernels.ipc.device_memory import CudaMemory, DeviceMemoryError
from slipstream_kernels.models.capture_layers import boundaries_of
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.stage_times import StageTimes
from verify_service.config import VerifySettings
from verify_service.draft_link import draft_servicer
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.draft_servicer import DraftLinkServicer
from verify_service.draft_link.link_config import CUDA_IPC
from verify_service.draft_link.records import LinkFacts
from verify_service.draft_link.transports.in_process import attach_host, load_host
from verify_service.engine.loop_stats import LoopState
from verify_service.engine.sink import Sink
from verify_service.engine.verify_loop import THREAD_NAME, VerifyLoop
from verify_service.grammar.compiler import GrammarCompiler
from verify_service.grammar.trials import GrammarTrials
from verify_service.hidden_states.device_ring_pool import DeviceRingPool
from verify_service.server import verify_servicer as service
from verify_service.server.adapter_loader import AdapterLoader
from verify_service.server.metrics.verify_metrics import VerifyMetrics
from verify_service.server.model_loader import Loaded, load
from verify_service.server.server_info import ServerInfo
from verify_service.server.stats_log import StatsLog
from verify_service.server.verify_servicer import Backend, VerifyServicer
from verify_service.server.watchdog import Watchdog, end_with_thread

_log = logging.getLogger(__name__)

SWITCH_SECONDS = 5e-4
"""How long the loop's thread may have to wait for another thread of Python as a step's results arrive."""
_YOUNG_OBJECTS = 20_000
"""So many more objects than before are looked through for garbage at a time: a step makes thousands that live on."""
STOP_SECONDS = 1.0
"""How long streams may take to end once every request is answered, and proposers to shut down."""


async def serve(settings: VerifySettings, begun: float | None = None) -> None:
    """Listen at once, so that health can be asked; serve when the model is ready, until terminated.

    `begun`: when the start began, by the monotonic clock; None: now. Raises SlipstreamError, CheckpointError or OSError
    for an address, model or memory that will not do.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    times = StageTimes(begun)
    registry = CollectorRegistry()
    metrics = VerifyMetrics(registry)
    tracer = open_tracer("slipstream-verify", settings.otlp_traces_endpoint)
    verify, draft = VerifyServicer(metrics, tracer), DraftLinkServicer()

    def register(server: grpc.aio.Server) -> None:
        verify.register(server)
        draft.register(server)

    server = GrpcServer(
        host=settings.host,
        port=settings.port,
        services=(service.SERVICE, draft_servicer.SERVICE),
        register=register,
        credentials=settings.tls.server_credentials() if settings.tls else None,
        unix_socket=settings.unix_socket,
    )
    vllm = settings.metrics_names == "vllm"
    published = with_vllm_names(registry, VERIFY_NAMES, lambda: settings.served_name) if vllm else registry
    # First, as a gRPC server that has begun must be stopped before its event loop ends.
    endpoint = serve_metrics(settings.metrics_port, published, host=settings.host) if settings.metrics_port else None
    port = await server.start()

    hosts: list[ProposerHost] = []
    background: list[asyncio.Task[None]] = []

    async def prepare() -> None:
        times.end("imports")
        if settings.inproc:
            hosts.append(await asyncio.to_thread(load_host, settings.inproc, settings.host_limits))
            times.end("proposers")
        loaded = await asyncio.to_thread(load, settings, times)
        backend = _start(settings, loaded, verify, metrics, hosts)
        await asyncio.to_thread(backend.adapters.load_named, settings.adapters)
        gc.collect()
        gc.freeze()  # what lives as long as the process is not looked through while requests run
        gc.collect()  # full collections are as rare as the last one found objects: there are few from now on
        gc.set_threshold(_YOUNG_OBJECTS)
        verify.backend = backend
        draft.link = backend.link
        if settings.stats_seconds:
            background.append(asyncio.create_task(StatsLog(backend.loop.state).run(settings.stats_seconds)))
        await server.set_serving(True)
        times.end("engine")
        _log.info("ready grpc=%d metrics=%d", port, endpoint.port if endpoint else 0)
        _log.info("started in %.1f s: %s", times.total, times)

    async def drain() -> None:
        await server.begin_drain()
        await verify.drain(settings.drain_seconds)
        for host in hosts:
            await asyncio.to_thread(host.stop, STOP_SECONDS)
        await server.drain(STOP_SECONDS)

    preparing = asyncio.create_task(prepare())
    terminated = asyncio.create_task(run_until_terminated(drain))
    await asyncio.wait((preparing, terminated), return_when=asyncio.FIRST_COMPLETED)
    if not preparing.done():
        # The loading thread cannot be interrupted and owns nothing that needs an orderly end.
        os._exit(0)
    try:
        await preparing
        await terminated
    finally:
        for task in (terminated, *background):
            task.cancel()
        await server.drain(0)
        if endpoint is not None:
            endpoint.close()


def _start(
    settings: VerifySettings,
    loaded: Loaded,
    verify: VerifyServicer,
    metrics: VerifyMetrics,
    hosts: Sequence[ProposerHost],
) -> Backend:
    """Attach the proposers of this process, take the KV memory and start the engine's thread."""
    config = loaded.model.config
    facts = LinkFacts(
        model_fingerprint=loaded.fingerprint.model,
        tokenizer_fingerprint=loaded.fingerprint.tokenizer,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        max_context=loaded.max_context,
        max_nodes=settings.max_nodes,
        feature_boundaries=tuple(boundaries_of(config.num_layers)) if settings.max_boundaries else (),
        most_boundaries=settings.max_boundaries,
    )
    rings = _device_rings(settings, config.hidden_size)
    link = DraftLink(facts, settings.link_config(), on_wait=metrics.draft_wait, rings=rings)
    for host in hosts:
        attach_host(link, host, device=settings.numbered_device, max_step_rows=settings.max_step_rows)
    engine = settings.engine_config(loaded.num_pages)
    grammars = _grammar_compiler(settings, loaded)
    loop = VerifyLoop(loaded.model, engine, link, Sink(verify.sink, verify.tell_started, verify.tell_cached), grammars)
    loop.adapters.on_change = verify.tell_adapters
    metrics.watch(loop.state, link.state, settings.adapter_slots)
    metrics.cache_config(loaded.kv_cache_dtype, settings.page_size, loaded.num_pages)
    end_with_thread(THREAD_NAME)
    loop.start()
    if settings.hang_seconds:
        Watchdog(settings.hang_seconds, lambda: loop.wait_idle(0), lambda: _progress(loop.state(), grammars)).start()
    adapters = AdapterLoader(
        loop.adapters,
        config,
        model_name=settings.served_name,
        folder=settings.lora_dir,
        most_rank=settings.max_lora_rank,
    )
    return Backend(_facts(settings, loaded), loop, link, adapters)


def _grammar_compiler(settings: VerifySettings, loaded: Loaded) -> GrammarCompiler:
    """What compiles grammars of requests; the tokenizer is read when the first one comes."""
    config = loaded.model.config
    vocab, ends = config.vocab_size, config.eos_token_ids
    return GrammarCompiler(
        partial(load_tokenizer, settings.model, vocab_size=vocab, eos_token_ids=ends),
        GrammarTrials(settings.model, vocab_size=vocab, eos_token_ids=ends),
    )


def _device_rings(settings: VerifySettings, hidden_size: int) -> DeviceRingPool | None:
    """Rings of the model's GPU; None where there is none, nobody wants them, or its memory cannot be shared."""
    if settings.on_cpu or CUDA_IPC not in settings.transports or not settings.max_boundaries:
        return None
    index = int(settings.numbered_device.partition(":")[2])
    try:
        memory = CudaMemory(index)
    except DeviceMemoryError as error:
        _log.warning("transport %s is not to be had: %s", CUDA_IPC, error)
        return None
    mps = is_mps_client(index)
    return DeviceRingPool(memory, max_step_rows=settings.max_step_rows, hidden_size=hidden_size, mps=mps)


def _progress(state: LoopState, grammars: GrammarCompiler) -> tuple[int, int, int, int]:
    return state.steps, state.committed_tokens, state.prepared, grammars.ended


def _facts(settings: VerifySettings, loaded: Loaded) -> ServerInfo:
    config = loaded.model.config
    return ServerInfo(
        model_name=settings.served_name,
        model_path=str(settings.model),
        model_fingerprint=loaded.fingerprint.model,
        tokenizer_fingerprint=loaded.fingerprint.tokenizer,
        vocab_size=config.vocab_size,
        max_context=loaded.max_context,
        max_running=settings.running,
        max_queued=settings.max_queued,
        eos_token_ids=tuple(config.eos_token_ids),
        mode=settings.mode,
        device=settings.device,
        page_size=settings.page_size,
        num_pages=loaded.num_pages,
        max_nodes=settings.max_nodes,
        process_id=os.getpid(),
        version=__version__,
        attention="" if isinstance(loaded.model, CausalLM) else loaded.model.attention,
        tensor_parallel_size=settings.tensor_parallel_size,
        gpu_uuid=settings.gpu_uuid,
        max_adapters=settings.adapter_slots,
        max_adapter_rank=settings.max_lora_rank,
        kv_cache_dtype=loaded.kv_cache_dtype,
        prefix_cache=settings.prefix_cache,
    )
