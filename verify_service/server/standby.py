"""What a verify service that stands by does ahead: all that its start takes whatever the model, but for the device."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points

from slipstream_kernels.draft_protocol.proposer_host import HOST_ENTRY_POINTS, IN_PROCESS
from slipstream_kernels.jit.compiler import meet_types


def prepare() -> None:
    """Import what serving takes, without touching a device: whoever stands by holds none of its memory."""
    for module in ("verify_service.server.server", "verify_service.server.model_loader"):
        import_module(module)
    import torch

    for entry in entry_points(group=HOST_ENTRY_POINTS, name=IN_PROCESS):
        with suppress(ImportError):  # told where proposers are to run in this process
            entry.load()
    if torch.version.cuda is None:
        meet_types()
    else:
        import_module("slipstream_kernels.models.gpu.gpu_model")
