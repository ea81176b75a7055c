from __future__ import annotations

import pytest

from support.answer_diff import ANSWERS_DIFFER, explain


def test_the_first_token_that_differs_is_named() -> None:
    with pytest.raises(AssertionError, match=rf"{ANSWERS_DIFFER}: token 2: \(9, 4\) and \(3, 4\), of 4 and 4"):
        assert (1, 2, 9, 4) == (1, 2, 3, 4)


def test_of_several_answers_the_first_that_differs() -> None:
    same = [1, 2, 3, 4]
    with pytest.raises(AssertionError, match=rf"{ANSWERS_DIFFER}: 2 of 3; the first is request 1: token 4"):
        assert [same, [*same, 5], [9, *same]] == [same, same, same]
    with pytest.raises(AssertionError, match=f"{ANSWERS_DIFFER}: 1 and 2 of them"):
        assert [same] == [same, same]


@pytest.mark.parametrize(
    "values", [([1], [2]), ([], [same := (1, 2, 3, 4)]), ("abcd", "abce"), ([True] * 4, [False] * 4)]
)
def test_anything_else_is_left_to_pytest(values: tuple[object, object]) -> None:
    assert explain(*values) is None
