"""What grammars cost the loop's thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GrammarSeconds:
    """Seconds, which go on growing, that no other work of the loop's thread is done in.

    drafts: drafting what is forced, pruning trees. checks: following what steps sampled. masks: computing masks, and
    sampling again under them.
    """

    drafts: float = 0.0
    checks: float = 0.0
    masks: float = 0.0
