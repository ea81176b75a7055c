"""An answer that differs anywhere is found, and none that does not."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.answer import Answer
from benchmarks.serving.comparison import SHOWN, Comparison, first_difference

tokens = st.lists(st.integers(0, 9), max_size=12).map(tuple)


def answer(prompt, ids, text=None):
    said = "".join(chr(97 + each) for each in ids or ()) if text is None else text
    return Answer(prompt, 0.0, 0.0, 1.0, "", (0.5,), (1.0,), 1, ids, said)


@given(tokens, tokens)
def test_the_first_difference_is_that(one, other):
    at = first_difference(one, other)
    if at is None:
        assert one == other
    else:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


@given(st.lists(tokens.filter(bool), min_size=1), st.data())
def test_one_changed_token_is_found(answered, data):
    comparison = Comparison()
    first = [answer(prompt, ids) for prompt, ids in enumerate(answered)]
    assert comparison.add("plain", 0, first) == 0
    assert comparison.add("inproc", 0, first) == 0
    changed = data.draw(st.integers(0, len(first) - 1))
    at = data.draw(st.integers(0, len(answered[changed]) - 1))
    ids = list(answered[changed])
    ids[at] += 1
    assert comparison.add("mps", 0, [*first[:changed], answer(changed, tuple(ids)), *first[changed + 1 :]]) == 1
    (difference,) = comparison.differences
    assert (difference.cell, difference.reference, difference.prompt, difference.at) == ("mps", "plain", changed, at)
    assert comparison.summary()["compared_by_token_ids"] == 2 * len(first)


def test_texts_are_compared_where_one_has_no_ids():
    comparison = Comparison()
    comparison.add("plain", 0, [answer(1, None, "abc")])
    assert comparison.add("plain, timed", 0, [answer(1, (0, 1, 2))]) == 0
    assert comparison.add("inproc", 0, [answer(1, None, "abx"), answer(1, (0, 1, 3))]) == 2
    assert [(each.unit, each.at) for each in comparison.differences] == [("character", 2), ("token", 2)]
    assert (comparison.by_text, comparison.by_ids) == (2, 1)


def test_other_contexts_and_what_is_not_whole_are_left_alone():
    comparison = Comparison()
    comparison.add("plain", 0, [answer(1, (1, 2))])
    assert comparison.add("plain", 1024, [answer(1, (2, 2))]) == 0
    assert comparison.add("inproc", 0, [replace(answer(1, (9,)), failure="connection: reset")]) == 0
    assert comparison.add("inproc", 0, [answer(1, (1,))]) == 1


def test_all_are_counted_and_some_are_shown():
    comparison = Comparison()
    comparison.add("plain", 0, [answer(prompt, (1,)) for prompt in range(2 * SHOWN)])
    assert comparison.add("inproc", 0, [answer(prompt, (2,)) for prompt in range(2 * SHOWN)]) == 2 * SHOWN
    assert len(comparison.summary()["examples"]) == SHOWN
