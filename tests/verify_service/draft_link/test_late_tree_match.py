"""What late trees would have brought."""

from __future__ import annotations

import pytest

from slipstream_kernels.token_tree import TokenTree
from verify_service.draft_link.late_tree_match import LateTreeMatch

TREE = TokenTree((5, 6, 7, 8), (-1, -1, 1, 2))
"""5, or 6 and then 7 and 8."""


@pytest.mark.parametrize(
    ("steps", "right"),
    [
        ([(9,)], 0),
        ([(5,)], 1),
        ([(6,), (9,)], 1),
        ([(6, 7, 9)], 2),
        ([(6, 7), (8,)], 3),
        ([(6,), (7, 8, 9)], 3),
    ],
)
def test_the_text_is_followed_down_the_tree_until_it_leaves_it(steps: list[tuple[int, ...]], right: int) -> None:
    match = LateTreeMatch(TREE)
    *before, last = steps
    assert not any(match.advance(tokens) for tokens in before)
    assert match.advance(last)
    assert match.matched_depth == right
