"""Runs the services on one host: `slipstream serve`, and `LLM` for offline use from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.offline.llm import LLM, CompletionOutput, RequestOutput
    from launcher.offline.sampling_params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Load what offline use needs on first use: the command line starts without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from launcher.offline import llm, sampling_params

    return getattr(sampling_params if name == "SamplingParams" else llm, name)
