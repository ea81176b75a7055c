"""A slot's feed of hidden states has no holes, and says what is missing."""

from __future__ import annotations

import numpy as np

from verify_service.draft_link.slots.state_feed import StateFeed
from verify_service.hidden_states.rows import HiddenStateRows

HIDDEN = 4


def rows_at(first: int, count: int, boundaries: tuple[int, ...] = (1, 2)) -> HiddenStateRows:
    return HiddenStateRows(boundaries, first, np.zeros((count, len(boundaries) * HIDDEN), dtype=np.uint16))


def test_rows_continue_the_feed_where_it_ends_and_have_all_its_boundaries() -> None:
    feed = StateFeed(boundaries=(2, 1), sent_until=3)
    following = rows_at(3, 2)
    assert feed.continued_by(following) is following
    assert feed.continued_by(rows_at(4, 1)) is None, "a hole"
    assert feed.continued_by(rows_at(2, 2)) is None, "sent before"
    assert feed.continued_by(rows_at(3, 2, boundaries=(1,))) is None
    assert feed.continued_by(None) is None
    assert StateFeed(sent_until=3).continued_by(following) is None, "it wants none"
    assert feed.num_bytes(following) == following.rows.nbytes


def test_a_drafter_lacks_states_of_all_tokens_but_the_last() -> None:
    feed = StateFeed(boundaries=(1,), required=True, sent_until=4)
    assert not feed.lacks(5)
    assert feed.lacks(6)
    assert not StateFeed(boundaries=(1,), sent_until=0).lacks(6), "it drafts without them"
