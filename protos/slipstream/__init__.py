"""The wire: schemas, generated stubs, server and channel bootstrap, the typed client. Never imports torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.client import AsyncClient, AsyncStream, Client, Stream
    from slipstream.completion import Completion, Event, Message, Model, SpeculationOptions

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Client",
    "Completion",
    "Event",
    "Message",
    "Model",
    "SpeculationOptions",
    "Stream",
]


def __getattr__(name: str) -> Any:
    """Load the client on first use: servers import this package without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "client" if name.endswith(("Client", "Stream")) else "completion"
    return getattr(import_module(f"slipstream.{module}"), name)
