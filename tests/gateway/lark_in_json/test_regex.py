from __future__ import annotations

import pytest

from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.nodes import EMPTY, Choice, Letters, Node, Repeat, Sequence, Text
from gateway.lark_in_json.regex import read_regex

DOT, ANY = Letters(r"[^\n]"), Letters(r"[\x{0}-\x{10FFFF}]")


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("", EMPTY),
        ("a", Text("a")),
        (r"\n\/\.", Sequence((Text("\n"), Text("/"), Text(".")))),
        (r"\x41\x{1F600}\u000a\U0000000b", Sequence((Text("A"), Text("\U0001f600"), Text("\n"), Text("\v")))),
        ("a|", Choice((Text("a"), EMPTY))),
        ("(?:a)*(?P<b>c)+(?<d>e)?", Sequence((
            Repeat(Text("a"), 0, None), Repeat(Text("c"), 1, None), Repeat(Text("e"), 0, 1)))),
        ("a{2}b{3,}c{4,5}d{0}", Sequence((
            Repeat(Text("a"), 2, 2), Repeat(Text("b"), 3, None), Repeat(Text("c"), 4, 5), EMPTY))),
        ("a{2}{3}", Repeat(Repeat(Text("a"), 2, 2), 3, 3)),
        (".(?s:.)(?s).|.", Choice((Sequence((DOT, ANY, ANY)), ANY))),
        ("a(?i)b(?-i:c)", Sequence((Text("a"), Text("b", ignore_case=True), Text("c")))),
        (r"\d\pL\P{Greek}", Sequence((Letters(r"[\d]"), Letters(r"[\pL]"), Letters(r"[\P{Greek}]")))),
        (r"[]a][^]][--a][\]][[:alpha:]][[a-z]&&[^x]]", Sequence(tuple(map(Letters, (
            "[]a]", "[^]]", "[--a]", r"[\]]", "[[:alpha:]]", "[[a-z]&&[^x]]"))))),
        ("]}", Sequence((Text("]"), Text("}")))),
    ],
)  # fmt: skip
def test_what_an_expression_says(text: str, node: Node) -> None:
    assert read_regex(text, "") == node


def test_flags_behind_an_expression() -> None:
    assert read_regex("a.", "is") == Sequence((Text("a", ignore_case=True), ANY))
    with pytest.raises(LarkError, match="the flag 'x'"):
        read_regex("a", "x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("^a", r"anchor '\^'"),
        ("a$", r"anchor '\$'"),
        (r"\ba", r"\\b is not supported"),
        ("a(?=b)", "look-around"),
        ("a(?<!b)", "look-around"),
        ("a*?", "lazy"),
        ("a{1,2}?", "lazy"),
        ("*a", "repeats nothing"),
        ("a{", "a repetition is none"),
        ("a{3,2}", "from 3 to 2 times"),
        ("(a", "a group does not end"),
        ("a)", "that none has opened"),
        ("[a", "a class does not end"),
        (r"a\\", None),
        ("(?x)a", "the flag 'x'"),
        ("(?-u)a", "the flag 'u'"),
        (r"\x{110000}", "110000 is no letter"),
        (r"\ud800", "d800 is no letter"),
        (r"\1", r"\\1 is not supported"),
        ("(" * 61 + ")" * 61, "more than 60 deep"),
        ("[" * 62 + "]" * 62, "more than 60 deep"),
    ],
)
def test_what_is_refused_by_name(text: str, words: str | None) -> None:
    if words is None:
        assert read_regex(text, "") == Sequence((Text("a"), Text("\\")))
        return
    with pytest.raises(LarkError, match=words):
        read_regex(text, "")
