"""A verify step as a tree in a terminal: what was drafted, what of it was right, and what the target said itself."""

from __future__ import annotations

from math import exp

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from slipstream.completion import Event, SpeculationStep, StepTrace
from slipstream.generation_types import TokenOrigin

_RIGHT, _WRONG, _OWN = "bold green", "dim", "bold cyan"


def step_tree(event: Event, number: int) -> RenderableType:
    """The step of a traced event; `number` counts the steps of an answer from 1. Nothing for an event without trace."""
    step = event.step
    if step is None or step.trace is None:
        return Group()
    trace = step.trace
    tree = Tree(Text(_head(step, trace, number), style="dim"), guide_style="dim")
    branches: dict[int, Tree] = {-1: tree}
    for node, parent in enumerate(trace.parents):
        branches[node] = branches[parent].add(_node(step, trace, node))
    for index, text in enumerate(trace.texts):
        if step.origin(index) is not TokenOrigin.DRAFT:
            branches[trace.accepted[-1] if trace.accepted else -1].add(Text(shown(text), style=_OWN))
    return tree


def legend() -> Text:
    """Which style stands for what."""
    return Text.assemble(("accepted draft ", _RIGHT), ("rejected draft ", _WRONG), ("the target's own token", _OWN))


def shown(text: str) -> str:
    """A token's text such that one sees all of it, without control characters."""
    return (
        "".join(char if char.isprintable() else repr(char)[1:-1] for char in text).replace(" ", "\N{OPEN BOX}") or "-"
    )


def _head(step: SpeculationStep, trace: StepTrace, number: int) -> str:
    made = f" by {step.proposer}" if step.proposer else ""
    return (
        f"step {number}, token {trace.position + 1}: {step.accepted} of {step.drafted} drafted tokens{made} accepted, "
        f"{1e3 * trace.pass_seconds:.1f} ms"
    )


def _node(step: SpeculationStep, trace: StepTrace, node: int) -> Text:
    known = trace.token_ids[node] is not None
    text = Text(shown(trace.node_texts[node]) if known else "(withheld)")
    text.stylize(_RIGHT if node in trace.accepted else _WRONG)
    if trace.log_probs:
        text.append(f" {exp(min(0.0, trace.log_probs[node])):.2f}", style="dim")
    if trace.sources:
        text.append(f" {step.proposer_of(node)}", style="dim")
    return text
