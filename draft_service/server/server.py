"""A draft service's life: load the proposers, serve administration, attach to verify for as long as it runs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import threading

import uvloop

from draft_service.config import DraftSettings, load_settings
from draft_service.layer_check.capture_layer_check import check_boundaries
from draft_service.proposers.registry import load_proposers
from draft_service.protocol.codec import Identity
from draft_service.protocol.placement import settle
from draft_service.server.admin_servicer import DraftAdmin, make_server
from draft_service.server.metrics import make_registry
from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker
from slipstream import __version__
from slipstream.rpc.descriptors import raise_limit
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.lifecycle import run_until_terminated
from slipstream.rpc.logs import set_up_logging
from slipstream.rpc.metrics import serve_metrics
from slipstream_kernels.device_start import begin_start

_log = logging.getLogger("draft_service")

_GRACE_S = 1.0


async def serve(settings: DraftSettings) -> None:
    """Run until terminated. Raises SlipstreamError if a proposer cannot be loaded or an address cannot be bound."""
    if "mode" in settings.model_fields_set:
        _log.warning("--mode is deprecated and sets nothing: leave it out")
    placement = settle(settings.device)
    proposers = load_proposers(
        settings.hosted,
        threads=settings.threads,
        max_nodes=settings.max_nodes,
        max_depth=settings.max_depth,
        top_k=settings.topk,
        device=placement.device,
        token_map=settings.token_map,
    )
    if settings.boundary_check:
        check_boundaries(proposers, settings.boundary_check_mib << 20)
    threading.excepthook = _quit_on_crash
    worker = Worker(proposers)
    identity = Identity(settings.name, settings.address(settings.port), os.getpid(), __version__, placement)
    link = VerifyLink(
        settings.verify,
        worker,
        identity,
        token=settings.attach_token,
        transports=settings.offered(placement),
        share=settings.share,
        spin=settings.spin(placement),
        tls=settings.tls,
    )
    server = make_server(settings, DraftAdmin(worker, link, identity))
    # First, as a gRPC server that has begun must be stopped before its event loop ends.
    metrics = serve_metrics(settings.metrics_port, make_registry(worker, link)) if settings.metrics_port else None
    port = await server.start()
    link.identify(settings.address(port))
    gc.freeze()  # to look through what lives as long as the process would stop drafting for several steps
    worker.start()
    linking = asyncio.create_task(link.run())
    linking.add_done_callback(_quit_on_failure)
    await server.set_serving(True)
    _log.info("ready grpc=%d device=%s proposers=%s", port, placement.device, ",".join(p.name for p in proposers))

    async def drain() -> None:
        await server.begin_drain()
        linking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await linking
        worker.stop()
        await server.drain(_GRACE_S)
        if metrics is not None:
            metrics.close()

    await run_until_terminated(drain)


def run() -> int:
    """Serve as the command line says until terminated; the exit status."""
    settings = load_settings()
    set_up_logging("draft", settings.log_level, settings.log_format)
    raise_limit()
    begin_start(settings.device)
    try:
        uvloop.run(serve(settings))
    except SlipstreamError as error:
        _log.error("%s", error.message)
        return 1
    return 0


def _quit_on_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _quit(error)


def _quit_on_crash(crash: threading.ExceptHookArgs) -> None:
    if crash.exc_value is not None:
        _quit(crash.exc_value)


def _quit(error: BaseException) -> None:
    """A link or worker that fails for a reason of ours ends the process, loudly, instead of leaving it deaf."""
    _log.critical("internal error", exc_info=error)
    logging.shutdown()
    os._exit(1)
