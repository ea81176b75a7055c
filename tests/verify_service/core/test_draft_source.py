"""The tree source of a service without proposers."""

from __future__ import annotations

from verify_service.core.draft_source import DraftSource, NoDrafts
from verify_service.core.request import RequestKey


def test_no_trees_knows_nobody_and_proposes_nothing() -> None:
    source: DraftSource = NoDrafts()
    assert not source.known("ngram")
    assert source.default() is None
    assert source.collect([RequestKey(0, 0), RequestKey(0, 1)]) == [None, None]
