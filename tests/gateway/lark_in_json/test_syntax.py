from __future__ import annotations

import pytest

from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.nodes import EMPTY, Both, Choice, Letters, Name, Not, Regex, Repeat, Sequence, Text
from gateway.lark_in_json.syntax import read


def test_what_a_definition_says() -> None:
    found = read(
        """
// a comment
!start: a "x"i [A] -> one  # another one
    | ("y" | ) A~2..3 | a{2,} A{,4} | a*

?a: "b".."d"+ /e\\/f/i
_A: ~"g" & (A /h/ | "\\u0069")
A: "j"
%ignore " "
%import common.INT -> B
%import common (WS, LF)
"""
    )
    a, capital = Name("a"), Name("A")
    assert found.rules["start"] == Choice((
        Sequence((a, Text("x", ignore_case=True), Repeat(capital, 0, 1))),
        Sequence((Choice((Text("y"), EMPTY)), Repeat(capital, 2, 3))),
        Sequence((Repeat(a, 2, None), Repeat(capital, 0, 4))),
        Repeat(a, 0, None),
    ))  # fmt: skip
    assert found.rules["a"] == Sequence((Repeat(Letters(r"[\x{62}-\x{64}]"), 1, None), Regex(r"e\/f", "i")))
    assert found.terminals["_A"] == Both((Not(Text("g")), Choice((Sequence((capital, Regex("h"))), Text("i")))))
    assert found.ignored == [Text(" ")]
    assert set(found.terminals) == {"_A", "A", "B", "WS", "LF"}


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("start: 'a'", "line 1, column 8: \"'a'\" begins no word"),
        ('start: "a"\n\nstart: "b"', "line 3, column 1: start is defined twice"),
        ('start: "a"\n"b"', "line 2, column 1: '\"b\"' begins no rule"),
        ("start: (", "'the end' stands where"),
        ("%import common.", "no 'the end'|no name"),
        ("%import common (", "no 'the end'|no name|where"),
        ("start: A ->", "no name of an option"),
        ("start", "options and parameters"),
        ('start: ("a"', "stands where '\\)' should"),
        ('start: "a")', "where a line should end"),
        ('start: "a"**', "stands where a string"),
        ('start: "a"~', "stands where a string"),
        ('start: "a"~3..2', "from 3 to 2 times is none"),
        ('start: "a"{0}', "from 0 to 0 times is none"),
        ('start: "a"~9999999', "at most 6 digits"),
        ("start: b..c", "where a line should end|stands where"),
        ('start: "b".."a"', "from one letter to a later one"),
        ('start: "ab".."c"', "from one letter to a later one"),
        ("start.2: a", "priorities"),
        ("start[lazy]: A", "options and parameters"),
        ("start{a}: a", "options and parameters"),
        ("start: f{A}", "templates, such as f"),
        ("start: <|end|>", "special token"),
        ("start: @other", "another grammar"),
        ('start: %json {"type": "null"}', "a schema within a text"),
        ('start: %regex {"substring_words": "a"}', "%regex is not supported"),
        ("%llguidance {}", "options of llguidance"),
        ("%declare A", "%declare is not supported"),
        ("%import python.STRING", "from common only"),
        ("%import common.STRING", "common has no 'STRING'"),
        ("%import common.INT -> int", "no name of a terminal"),
        ("start: " + "(" * 61 + "a" + ")" * 61, "more than 60 deep"),
    ],
)
def test_what_is_refused_by_place_or_name(definition: str, words: str) -> None:
    with pytest.raises(LarkError, match=words):
        read(definition)
