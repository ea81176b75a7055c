"""What grammars cost the loop's thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GrammarSeconds:
    """Seconds, which go on growing, that steps take longer.

    drafts: drafting what is forced, pruning trees. checks: following what steps sampled. masks: what a step waits for
    masks once its pass is over, and sampling rows again under them that were sampled without. samples: sampling rows
    behind the pass that it had left to be sampled under masks, instead of in it.
    """

    drafts: float = 0.0
    checks: float = 0.0
    masks: float = 0.0
    samples: float = 0.0
