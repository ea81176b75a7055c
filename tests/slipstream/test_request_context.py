"""What is kept of the names that somebody gives a request."""

from __future__ import annotations

import pytest

from slipstream.request_context import NO_CONTEXT, RequestContext, checked, is_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_what_is_well_formed_is_kept() -> None:
    assert checked("order-7", f" {PARENT} ", "a=1,b=2") == RequestContext("order-7", PARENT, "a=1,b=2")
    assert checked("", PARENT, "") == RequestContext("", PARENT, "")


@pytest.mark.parametrize("text", ["a b", 'a"', "x" * 129, "a\n", "ü"])
def test_a_malformed_id_is_dropped_alone(text: str) -> None:
    assert checked(text, PARENT, "") == RequestContext("", PARENT)


@pytest.mark.parametrize(
    "text",
    [
        "", "00", f"00-{TRACE}-{SPAN}", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}-1", PARENT + "\n01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 512}", f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
)  # fmt: skip
def test_a_malformed_parent_takes_its_state_along(text: str) -> None:
    assert checked("", text, "a=1") == NO_CONTEXT


def test_a_later_version_may_say_more() -> None:
    assert is_traceparent(f"01-{TRACE}-{SPAN}-01-more")


@pytest.mark.parametrize("state", ["a=\n", "ü=1", "a=" + "1" * 512])
def test_a_malformed_state_is_dropped_alone(state: str) -> None:
    assert checked("", PARENT, state) == RequestContext("", PARENT)
