"""The matrix: proposers, laws and concurrencies, the services that answer them, and what comparing yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.lib.repository import DEMO_DRAFT_MODEL, DEMO_HEAD
from benchmarks.lib.server_process import with_test_modules
from benchmarks.structured.answers import Answer, misfit
from benchmarks.structured.cases import MODEL, Case
from launcher.services.process import Spawner
from launcher.supervision.cluster import Cluster

NONE: Final = "none"
GRAMMAR: Final = "grammar"
DRAFTED: Final = ("ngram", "draft-model", "eagle3", "hybrid", "oracle", "random")
"""Proposers of a draft service; `grammar` drafts beside them what it forces."""
PROPOSERS: Final = (NONE, GRAMMAR, *DRAFTED)
CONCURRENCIES: Final = (1, 8)
TEMPLATE: Final = Path(__file__).parent / "tools.jinja"
_DIFFERENCES_SHOWN: Final = 5
_ROWS: Final = 8
"""Of a step: on a CPU, which pads to as many, they cost little more than one."""
_DEADLINE_MS: Final = "250"
"""Trees are given time to arrive: what is tested is what trees do, not how fast they come."""


def speculation(proposer: str) -> dict[str, Any]:
    """The field of a request that has it drafted for so, of services as `started` for that proposer."""
    if proposer in (NONE, GRAMMAR):
        return {"speculation": {"enabled": proposer == GRAMMAR, "max_nodes": _ROWS}}
    return {"speculation": {"enabled": True, "proposer": proposer, "max_nodes": _ROWS}}


def started(model: Path, oracle: Path | None = None, spawner: Spawner | None = None) -> Cluster:
    """Services without a drafter; with a file of continuations those that have all of DRAFTED."""
    draft: Sequence[str] = ()
    if oracle is not None:
        draft = (
            "ngram",
            f"draft-model:{DEMO_DRAFT_MODEL}",
            f"eagle3:{DEMO_HEAD}:target={model}",
            "hybrid:ngram+draft-model+eagle3",
            "random=support.proposers:random_tree",
            f"oracle=support.proposers:oracle:{oracle}",
        )
    return Cluster(
        model,
        draft=draft,
        verify_args=(
            "--model-name",
            MODEL,
            "--num-pages",
            "1024",
            "--draft-deadline-ms",
            _DEADLINE_MS,
            "--log-level",
            "warning",
        ),
        gateway_args=("--chat-template", str(TEMPLATE), "--tool-call-parser", "hermes", "--log-level", "warning"),
        env=with_test_modules(),
        spawner=spawner,
    )


@dataclass(slots=True)
class Count:
    """What comparing a cell's answers with the reference's yielded."""

    answers: int = 0
    tokens: int = 0
    finished: int = 0
    calls: int = 0
    differences: int = 0
    """Answers whose ids, text, calls or finish reason are not the reference's."""
    misfits: int = 0
    """Finished answers that do not fit their schema."""
    drafted: int = 0
    accepted: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, case: Case, answer: Answer, reference: Answer) -> None:
        """Compare one answer."""
        self.answers += 1
        self.tokens += len(answer.token_ids)
        self.finished += answer.finished
        self.calls += len(answer.calls)
        self.drafted += answer.drafted
        self.accepted += answer.accepted
        if answer.compared != reference.compared:
            self.differences += 1
            self._show(f"{case.name}: {answer.compared} instead of {reference.compared}")
        if (reason := misfit(case, answer)) is not None:
            self.misfits += 1
            self._show(f"{case.name}: {reason}")

    def _show(self, words: str) -> None:
        self.shown = [*self.shown, words[:400]][:_DIFFERENCES_SHOWN]

    @classmethod
    def total(cls, counts: Sequence[Self]) -> Self:
        """The sum of several counts."""
        result = cls()
        for count in counts:
            for name, value in asdict(count).items():
                setattr(result, name, getattr(result, name) + value)
        result.shown = result.shown[:_DIFFERENCES_SHOWN]
        return result


HEADER: Final = (
    "proposer", "T", "at once", "answers", "tokens", "finished", "calls", "differences", "misfits", "drafted",
    "accepted",
)  # fmt: skip


def row(proposer: str, law: str, concurrency: int, count: Count) -> list[object]:
    """A line of the table, under HEADER."""
    return [
        *(proposer, law, concurrency, count.answers, count.tokens, count.finished, count.calls),
        *(count.differences, count.misfits, count.drafted, count.accepted),
    ]
