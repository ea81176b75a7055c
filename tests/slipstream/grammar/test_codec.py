from __future__ import annotations

import pytest

from slipstream.grammar.codec import decode_grammar, encode_grammar
from slipstream.grammar.grammar import Grammar, StructuralTag, TagRule


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(),
        Grammar(json_schema="{}", whitespace_pattern="", coerce_one_of=True, starts_after=(3, 4)),
        Grammar(json_object=True, whitespace_pattern=" "),
        Grammar(regex=""),
        Grammar(lark="start: x"),
        Grammar(choice=("a", "b")),
        Grammar(choice=()),
        Grammar(
            structural_tag=StructuralTag(
                (
                    TagRule("a", "ab", "c", json_schema=""),
                    TagRule("a", "ab", "c", lark="x"),
                    TagRule("a", "ab", "", regex="y"),
                    TagRule("", "", ""),
                ),
                at_least_one=True,
                no_free_text=True,
                stop_after_first=True,
            )
        ),
    ],
)
def test_a_grammar_keeps_its_fields_on_the_wire(grammar: Grammar) -> None:
    assert (
        decode_grammar(type(encode_grammar(grammar)).FromString(encode_grammar(grammar).SerializeToString())) == grammar
    )
