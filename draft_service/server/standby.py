"""What a draft service that stands by does ahead: all that its start takes whatever the proposers."""

from __future__ import annotations

from importlib import import_module

from slipstream_kernels.jit.compiler import meet_types


def prepare() -> None:
    """Import what drafting takes, without touching a device: whoever stands by holds none of its memory."""
    import_module("draft_service.server.server")
    meet_types()
