"""The wire: schemas, generated stubs, server and channel bootstrap, the typed client. Never imports torch.

Offline use begins here, too: `from slipstream import LLM, SamplingParams` finds what the launcher offers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from slipstream.packages import load_own

if TYPE_CHECKING:
    from launcher.offline.llm import LLM, CompletionOutput, RequestOutput
    from launcher.offline.lora import LoRARequest
    from launcher.offline.sampling_params import SamplingParams
    from slipstream.client import AsyncClient, AsyncStream, Client, Stream
    from slipstream.completion import Completion, Event, Grammar, Message, Model, SpeculationOptions

__all__ = [
    "LLM",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "Completion",
    "CompletionOutput",
    "Event",
    "Grammar",
    "LoRARequest",
    "Message",
    "Model",
    "RequestOutput",
    "SamplingParams",
    "SpeculationOptions",
    "Stream",
]
__version__ = "0.1.0"

_OFFLINE: Final = {
    "LLM": "llm",
    "CompletionOutput": "llm",
    "LoRARequest": "lora",
    "RequestOutput": "llm",
    "SamplingParams": "sampling_params",
}


def __getattr__(name: str) -> Any:
    """Load the client, or what offline use needs, on first use: servers import this package without either."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _OFFLINE:
        return getattr(load_own(f"launcher.offline.{_OFFLINE[name]}"), name)
    module = "client" if name.endswith(("Client", "Stream")) else "completion"
    return getattr(import_module(f"slipstream.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
