"""What a link sends while its drafters hang."""

from __future__ import annotations

import pytest

from verify_service.core.draft_source import Committed
from verify_service.core.request import RequestKey
from verify_service.draft_link.routing.link_pause import HEARTBEAT_SECONDS, MAX_TOKENS, LinkPause

ONE, TWO, THREE = RequestKey(1, 1), RequestKey(1, 2), RequestKey(1, 3)


def committed(key: RequestKey, total: int, *tokens: int) -> Committed:
    return Committed(key, tokens, total, 4, 3)


@pytest.fixture
def hanging() -> LinkPause:
    """Paused at second 100."""
    pause = LinkPause()
    assert not pause.accepts_commits(100.0, unresponsive=True)
    assert pause.active
    return pause


def test_a_link_whose_drafters_answer_is_told_everything_at_once() -> None:
    pause = LinkPause()
    assert pause.accepts_commits(100.0, unresponsive=False)
    commits = [committed(ONE, 3, 5)]
    assert list(pause.begin_commit(commits, unresponsive=False)) == [commits]
    assert not pause.active


def test_while_drafters_hang_nothing_is_told_but_a_heartbeat(hanging: LinkPause) -> None:
    for _ in range(3):
        assert not hanging.accepts_commits(100.0, unresponsive=True)
    assert hanging.accepts_commits(100.0 + HEARTBEAT_SECONDS, unresponsive=True)
    (part,) = hanging.begin_commit([committed(ONE, 7, 10, 11), committed(TWO, 15, 6)], unresponsive=True)
    assert [(each.key, each.token_ids, each.total_length, each.max_nodes, each.max_depth) for each in part] == [
        (ONE, (10, 11), 7, 2, 1),
        (TWO, (6,), 15, 2, 1),
    ], "a tree shows that a drafter goes on"
    assert hanging.active, "the drafters still hang"
    assert not hanging.accepts_commits(100.5 + HEARTBEAT_SECONDS, unresponsive=True)


def test_the_first_commit_after_one_is_heard_ends_the_pause(hanging: LinkPause) -> None:
    assert hanging.accepts_commits(100.0, unresponsive=False)
    assert hanging.active, "trees would be for a state that has passed"
    commits = [committed(ONE, 5, 6, 7)]
    assert list(hanging.begin_commit(commits, unresponsive=False)) == [commits]
    assert not hanging.active


def test_no_more_is_told_at_once_than_one_message_takes(hanging: LinkPause) -> None:
    half = MAX_TOKENS // 2
    commits = [committed(key, 3 + half, *range(half)) for key in (ONE, TWO, THREE)]
    parts = hanging.begin_commit(commits, unresponsive=False)
    assert [[each.key for each in part] for part in parts] == [[ONE, TWO], [THREE]]
