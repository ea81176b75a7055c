from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.stop_strings import StopStrings

patterns = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3)
pieces = st.lists(st.text(alphabet="abc", max_size=4), max_size=12)


def run(stops: StopStrings, parts: list[str]) -> tuple[str, str | None]:
    shown = ""
    for part in parts:
        shown += stops.push(part)
        if stops.matched is not None:
            return shown, stops.matched
    return shown + stops.flush(), None


def first_match(text: str, strings: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        if ended := [string for string in strings if text[:end].endswith(string)]:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(strings=patterns, parts=pieces)
def test_the_first_string_to_end_wins_however_the_text_is_cut(strings: list[str], parts: list[str]) -> None:
    assert run(StopStrings(strings), parts) == first_match("".join(parts), strings)


@given(strings=patterns, parts=pieces)
def test_only_what_may_become_a_stop_string_is_held_back(strings: list[str], parts: list[str]) -> None:
    stops, shown, given_text = StopStrings(strings), "", ""
    for part in parts:
        given_text += part
        shown += stops.push(part)
        if stops.matched is not None:
            break
        held = given_text[len(shown) :]
        assert not held or any(string.startswith(held) and string != held for string in strings)


def test_while_not_armed_a_stop_string_is_ordinary_text() -> None:
    stops = StopStrings(["END"])
    shown = stops.push("xEND", armed=False) + stops.push("yENDz")
    assert shown == "xENDy"
    assert stops.matched == "END"


def test_an_overlap_with_an_ignored_string_still_counts() -> None:
    stops = StopStrings(["aa"])
    assert stops.push("aa", armed=False) + stops.push("a") == "a"
    assert stops.matched == "aa"
