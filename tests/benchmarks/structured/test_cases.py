"""What the matrix of structured answers asks: the same every time, of every kind, and nothing that would be refused."""

from __future__ import annotations

import json

import jsonschema
import pytest

from benchmarks.lib.schemas import KINDS, schemas
from benchmarks.structured.answers import Answer, misfit
from benchmarks.structured.cases import TEMPERATURES, Case, cases
from benchmarks.structured.matrix import Count
from slipstream.grammar.check import check
from slipstream.grammar.grammar import Grammar

SEED = 21


def answer(text: str | None = None, calls: tuple[tuple[str, str], ...] = (), reason: str = "stop") -> Answer:
    return Answer((1, 2), text, calls, reason, (1,), drafted=3, accepted=1)


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_schemas_can_be_enforced_and_no_two_are_alike(kind: int) -> None:
    found = schemas(250, SEED)
    assert found == schemas(250, SEED)
    assert len({json.dumps(schema) for _, schema in found}) == 250
    for name, schema in found[kind :: len(KINDS)]:
        assert name == KINDS[kind].__name__
        jsonschema.Draft202012Validator.check_schema(schema)
        check(Grammar(json_schema=json.dumps(schema)))


def test_laws_with_noise_have_seeds_of_their_own() -> None:
    found = cases(20, 10, SEED)
    assert len(found) == 30 and found == cases(20, 10, SEED)
    asked = [case.asked(law, 8) for case in found for law in TEMPERATURES]
    assert len({body["seed"] for body in asked}) == len(asked)
    kinds = {case.kind for case in found}
    assert {kind.__name__ for kind in KINDS} | {"required call", "named call", "auto call"} == kinds


def test_what_does_not_fit_is_counted() -> None:
    held = Case("a", "easy", {}, 0, schema={"type": "integer"})
    assert misfit(held, answer("12")) is None and misfit(held, answer("1", reason="stop")) is None
    assert misfit(held, answer('"x"')) and misfit(held, answer("{")) and misfit(held, answer(None))
    assert misfit(held, answer("{", reason="length")) is None, "what was cut off fits nothing yet"
    tools = Case("b", "call", {}, 0, tools={"f": {"type": "object", "required": ["x"]}})
    assert misfit(tools, answer(calls=(("f", '{"x": 1}'),), reason="tool_calls")) is None
    assert misfit(tools, answer(calls=(("f", "{}"),), reason="tool_calls"))
    assert misfit(tools, answer(calls=(("g", "{}"),), reason="tool_calls"))
    count = Count()
    count.add(held, answer("12"), answer("12"))
    count.add(held, answer("13"), answer("12"))
    count.add(held, answer('"x"'), answer('"x"'))
    assert (count.answers, count.differences, count.misfits, len(count.shown)) == (3, 1, 1, 2)
    both = Count.total([count, count])
    assert (both.answers, both.differences, both.accepted, len(both.shown)) == (6, 2, 6, 4)
