"""What became of the trees of one proposer in one attachment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.generation_types import SourceCount
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import accepted_by_source, match_path
from verify_service.draft_link.answer_time import AnswerTimes

_DOUBT = 4.0
"""Trees that brought nothing, beside those seen."""
_FADE = 0.02


@dataclass(slots=True)
class DraftStats:
    """Counters from the attachment's start.

    `hits` and `misses` count trees that were there when a step asked for them, and those that a step waited for in
    vain; `late` trees that came when their step had begun; `waits` steps that waited, for one tree or for several.
    `drafted` and `accepted` count tokens of the trees that steps took, where the request went on afterwards.

    Of trees ahead, `ahead_hits` and `ahead_misses` count steps that found the one for the way in which the step before
    had ended, and steps that did not; `ahead_late` trees whose step had begun when they came; `ahead_stale` those that
    no step under way could lead to, or that were more than are kept.

    `sources` shares out `drafted` and `accepted` of trees that several proposers made, by the proposer's name; there is
    at most one entry for each offer of the attachment.
    """

    hits: int = 0
    misses: int = 0
    late: int = 0
    drafted: int = 0
    accepted: int = 0
    ahead_hits: int = 0
    ahead_misses: int = 0
    ahead_late: int = 0
    ahead_stale: int = 0
    waits: int = 0
    sources: dict[str, SourceCount] = field(default_factory=dict)
    answers: AnswerTimes = field(default_factory=AnswerTimes, compare=False)
    _judged: float = field(default=0.0, compare=False)
    _right: float = field(default=0.0, compare=False)
    """trees, and levels of them that the text went on with; old ones fade"""

    @property
    def gain(self) -> float:
        """Tokens that a tree brings, as lately seen; less as long as few were seen."""
        return self._right / (self._judged + _DOUBT)

    def judge(self, levels: int) -> None:
        """The text went on with so many levels of a tree, whether a step had it or it came too late."""
        self._judged += 1.0 - _FADE * self._judged
        self._right += levels - _FADE * self._right

    def settle(self, tree: TokenTree, tokens: Sequence[int]) -> int:
        """A step that was given `tree` has committed `tokens`, the last of which is no node's.

        Returns the last node accepted, -1 for none.
        """
        node, count = match_path(tree, tokens[:-1])
        self.judge(count)
        self.drafted += len(tree)
        self.accepted += count
        for name, drafted, accepted in accepted_by_source(tree, tree.path(node)):
            before = self.sources.get(name, SourceCount(name, 0, 0))
            self.sources[name] = SourceCount(name, before.drafted + drafted, before.accepted + accepted)
        return node
