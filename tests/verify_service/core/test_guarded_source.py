"""A draft source that fails answers like one without drafters, method by method."""

from __future__ import annotations

import inspect
import logging

import pytest

from slipstream.generation_types import FinishReason
from verify_service.core.draft_source import DraftSource, NoDrafts, StateSpan
from verify_service.core.guarded_source import GuardedSource
from verify_service.core.request import RequestKey

ONE, TWO = RequestKey(0, 1), RequestKey(0, 2)
ARGUMENTS = {
    "known": ("p",),
    "begin": (None,),
    "commit": ([],),
    "collect": ([ONE, TWO],),
    "drafts_behind": ([ONE],),
    "expects": ([ONE],),
    "end": (ONE, FinishReason.STOP),
    "enqueue_draft": ([], None),
    "allow_device_trees": (True,),
    "observe_wait": ([ONE], 1.0),
    "round_costs": ("p",),
    "most_levels": ("p",),
    "reserve_ring": ([StateSpan(ONE, 0, 4)], (1,)),
    "send_states": ([],),
}
METHODS = [name for name, _ in inspect.getmembers(DraftSource, inspect.isfunction) if not name.startswith("_")]


class Broken:
    """Raises at every call."""

    def __getattr__(self, name: str):
        def fail(*args: object) -> None:
            raise RuntimeError(name)

        return fail


class Noting:
    """Answers each call with what was asked."""

    def __getattr__(self, name: str):
        return lambda *args: (name, args)


@pytest.mark.parametrize("name", METHODS)
def test_whatever_raises_is_answered_as_without_drafters(name: str, caplog: pytest.LogCaptureFixture) -> None:
    arguments = ARGUMENTS.get(name, ())
    with caplog.at_level(logging.ERROR):
        answer = getattr(GuardedSource(Broken()), name)(*arguments)  # type: ignore[arg-type]  # as broken as can be
    assert answer == getattr(NoDrafts(), name)(*arguments)
    assert [name in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("name", METHODS)
def test_a_source_that_works_is_asked_itself(name: str) -> None:
    arguments = ARGUMENTS.get(name, ())
    answer = getattr(GuardedSource(Noting()), name)(*arguments)  # type: ignore[arg-type]  # it notes all calls
    assert answer in ((name, arguments), None)
