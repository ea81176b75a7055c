"""Writes what a verify step verified as the OpenAI API's extension has it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.openai.types import StepTrace, TracedToken, TracedTree
from slipstream.generation_types import SpeculationStep, TokenOrigin


def trace_body(step: SpeculationStep, token_ids: Sequence[int]) -> StepTrace:
    """The trace of a traced step that put out these tokens."""
    trace = step.trace
    assert trace is not None
    tree: TracedTree | None = None
    if trace.token_ids:
        tree = {
            "token_ids": list(trace.token_ids),
            "texts": list(trace.node_texts),
            "parents": list(trace.parents),
            "log_probs": list(trace.log_probs) or None,
            "proposers": list(trace.sources) or [step.proposer] * len(trace.token_ids),
            "accepted": list(trace.accepted),
        }
    return {
        "position": trace.position,
        "proposer": step.proposer,
        "tokens": [
            _token(step, index, token_id, trace.texts[index] if index < len(trace.texts) else "")
            for index, token_id in enumerate(token_ids)
        ],
        "tree": tree,
        "rows": 1 + step.drafted,
        "pass_rows": trace.pass_rows,
        "pass_seconds": trace.pass_seconds,
    }


def _token(step: SpeculationStep, index: int, token_id: int, text: str) -> TracedToken:
    origin, trace = step.origin(index), step.trace
    proposer: str | None = None
    if origin is TokenOrigin.DRAFT and trace is not None and index < len(trace.accepted):
        proposer = step.proposer_of(trace.accepted[index])
    return {"token_id": token_id, "text": text, "origin": origin.value, "proposer": proposer}
