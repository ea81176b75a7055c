"""What a client is told of a verify step whose trace it asks for."""

from __future__ import annotations

from slipstream.generation_types import SpeculationStep, StepTrace
from verify_service.core.step_result import VerifyResult


def traced(
    step: SpeculationStep, decision: VerifyResult, count: int, *, pass_rows: int, pass_seconds: float
) -> SpeculationStep:
    """The same with the tree that was verified, of which `count` decided tokens became output.

    The host knows the tree by now, whoever drafted it. `pass_rows` and `pass_seconds` are those of the whole step.
    """
    tree, position = decision.item.tree, decision.item.base - decision.item.state.prompt_length
    if tree is None:
        trace = StepTrace(position, pass_rows=pass_rows, pass_seconds=pass_seconds)
    else:
        trace = StepTrace(
            position=position,
            token_ids=tuple(tree.token_ids),
            parents=tuple(tree.parents),
            log_probs=tuple(tree.log_probs or ()),
            sources=tuple(tree.sources or ()),
            accepted=decision.path.nodes[:count],
            pass_rows=pass_rows,
            pass_seconds=pass_seconds,
        )
    return SpeculationStep(step.drafted, step.accepted, step.proposer, step.sources, trace)
