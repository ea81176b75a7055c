from __future__ import annotations

import pytest

from slipstream.grammar.grammar import Grammar, StructuralTag, TagRule
from verify_service.grammar.endless import may_force_without_end

TAG = TagRule("<", "<a>", "</a>", json_schema="{}")


@pytest.mark.parametrize(
    ("grammar", "endless"),
    [
        (Grammar(json_schema="{}"), False),
        (Grammar(json_object=True, whitespace_pattern=""), False),
        (Grammar(json_object=True, whitespace_pattern="[ {]*"), True),
        (Grammar(regex="ab*"), False),
        (Grammar(choice=("a", "b")), False),
        (Grammar(lark='start: "a"'), True),
        (Grammar(structural_tag=StructuralTag((TAG, TAG))), False),
        (Grammar(structural_tag=StructuralTag((TAG,)), whitespace_pattern="x*"), True),
        (Grammar(structural_tag=StructuralTag((TAG, TagRule("<", "<b>", "b", regex="b*")))), True),
    ],
)
def test_which_grammars_may_force_a_text_without_end(grammar: Grammar, endless: bool) -> None:
    assert may_force_without_end(grammar) == endless
