"""Which proposers fit a target, and what is said of the others."""

from __future__ import annotations

import pytest

from draft_service.proposers.base import Target
from draft_service.proposers.ngram.ngram import NgramConfig, NgramProposer
from draft_service.worker.target_binding import Fitting
from tests.draft_service.broken_proposers import Unfit

TARGET = Target(100, "", 64)


class Odd(NgramProposer):
    """A third party's, with a mistake in it."""

    def bind(self, target: Target) -> None:
        raise KeyError(self.name)


def test_reasons_are_told_and_failures_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    config = NgramConfig()
    proposers = [Unfit("unfit", config), NgramProposer("ngram", config), Odd("odd", config)]
    fitting = Fitting()
    for _ in range(3):
        binding = fitting.bind(proposers, TARGET)
    assert [proposer.name for proposer in binding.fitting] == ["ngram"]
    assert binding.unfit == {"unfit": "another tokenizer", "odd": "it failed to take the target: KeyError('odd')"}
    assert [record.exc_info is not None for record in caplog.records] == [True]
