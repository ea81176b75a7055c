"""The verify service's life: load the model, serve it, drain on SIGTERM."""

from __future__ import annotations

import logging

import uvloop

from slipstream.grammar.deep_stack import end_process
from slipstream.imports import importing
from slipstream.rpc.descriptors import raise_limit
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.logs import set_up_logging
from slipstream.settings import load
from slipstream_kernels.device_start import begin_start
from verify_service.config import VerifySettings

_log = logging.getLogger(__name__)


def run(argv: list[str] | None = None, begun: float | None = None) -> None:
    """Run until terminated. Exit status 1 for a model, address or memory that will not do.

    `begun`: when the start began, by the monotonic clock.
    """
    settings = load(VerifySettings, "verify_service", argv)
    set_up_logging("verify", settings.log_level, settings.log_format)
    raise_limit()
    begin_start(settings.device)
    # Late, so that --help and mistakes in flags are answered without loading the device's libraries.
    with importing():
        from slipstream_kernels.models.checkpoint.model_config import CheckpointError
        from verify_service.server.server import serve

    try:
        uvloop.run(serve(settings, begun))
    except (SlipstreamError, CheckpointError, OSError) as error:
        _log.error("%s", error)
        end_process(1)
    end_process(0)
