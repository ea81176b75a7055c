"""What the costs of grammars are judged by, without a server."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from benchmarks.structured.cost import FIRST_USE, failures, tool_like
from benchmarks.structured.first_use import DEAR, LONGER, USUAL, FirstUse, hostile_schema, large_schema
from benchmarks.structured.rates import FREE, HELD, HELD_DRAFTED, Rates, Way, body_of


def content(ratio: float, masks: float, longer: float) -> dict[str, Any]:
    return {
        "rates": {"8": {"times free plain decoding": {HELD_DRAFTED: ratio}}},
        "waits": [{"way": HELD, "T": "0", "shares": {"masks": masks}}],
        FIRST_USE: {USUAL: {LONGER: 0.5}, DEAR: {LONGER: longer}},
    }


def test_each_bar_that_is_missed_is_named() -> None:
    assert failures(content(1.15, 0.02, 1.0)) == []
    assert [len(failures(content(*each))) for each in ((1.14, 0.02, 1), (1.15, 0.021, 1), (1.15, 0.02, 1.1))] == [
        1,
        1,
        1,
    ]
    assert len(failures(content(1.0, 0.5, 9.0))) == 3


def test_ratios_are_of_each_round() -> None:
    rates = Rates(tokens=10)
    for free, held in ((1.0, 2.0), (10.0, 30.0), (100.0, 100.0)):
        rates.add(FREE, free)
        rates.add(HELD, held)
    assert (rates.median(FREE), rates.ratio(HELD, FREE)) == (10.0, 2.0)


def test_gaps_beside_a_new_schema_are_compared_with_those_before_it() -> None:
    found = FirstUse(first=[0.2, 0.4], again=[0.1], refused=1)
    found.add_gaps([[0.0, 1.0, 2.0, 3.0, 4.5, 6.0], [10.0, 11.0]], [(3.2, 5.0), (10.1, 10.9)], [(6.5, 7.0), (5.1, 5.2)])
    assert found.longest == [(1.5, 1.0, 0.0), (1.0, 0.0, 1.5)], "a stream that begins anew has no gap there"
    document = found.document()
    assert document["first token or refusal, new schema"] == {"median": 300.0, "p99": 398.0, "max": 400.0}
    assert document[LONGER] == pytest.approx(0.0, abs=0.01), "0.5 longer, and 0.5 shorter"


def test_schemas_differ_and_free_requests_have_no_grammar() -> None:
    pick = Random(1)
    assert large_schema(pick, 8) != large_schema(pick, 8)
    assert hostile_schema(pick) != hostile_schema(pick)
    case = tool_like(8, 21)[0]
    asked = case.asked("0", 16)
    free = body_of(Way("free", "", held=False, drafted=False), asked, 5, (1, 2))
    assert (free["prompt"], free["max_tokens"], free["ignore_eos"]) == ([1, 2], 5, True)
    assert not {"tools", "tool_choice", "response_format", "messages"} & set(free)
    assert free["speculation"] == {"enabled": False}
    assert "speculation" not in body_of(Way("drafted", "", held=True, drafted=True), asked, 5, ())
