"""What a trace does not tell its client: tokens that may be another request's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slipstream.generation_types import SpeculationStep


def without_other_texts(step: SpeculationStep, remembers: Callable[[str], bool]) -> SpeculationStep:
    """A traced step without the tokens of nodes that were not accepted and whose proposer `remembers` other requests.

    Accepted ones are the request's own output.
    """
    trace = step.trace
    if trace is None or not any(map(remembers, set(trace.sources) or {step.proposer})):
        return step
    shown = frozenset(trace.accepted)
    token_ids = tuple(
        token if node in shown or not remembers(step.proposer_of(node)) else None
        for node, token in enumerate(trace.token_ids)
    )
    return replace(step, trace=replace(trace, token_ids=token_ids))
