"""A rewritten grammar accepts a text as JSON writes it, if and only if llguidance accepts the text by the grammar."""

from __future__ import annotations

import json
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from gateway.lark_in_json.encoding import AS_IT_IS, IN_JSON, Encoding
from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.rewrite import MOST_BYTES, rewritten
from slipstream.grammar.check import parser_limits
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.text import grammar_text
from support.random_grammars import LETTERS, random_grammar

PROGRAM = r"""
start: statement+
statement: NAME "=" value ";"
value: ESCAPED_STRING | SIGNED_NUMBER | "(" value ")" | list
list: "[" [value ("," value)*] "]"
NAME: /[a-z]+/
%import common (ESCAPED_STRING, SIGNED_NUMBER)
%import common.WS -> SPACE
%ignore SPACE
%ignore /#[^\n]*/  // to the end of a line
"""
INDENTED = r"""
start: block
block: line+
line: /[^\n"]*/ NEWLINE -> a_line
    | "\"" QUOTED "\"" NEWLINE
QUOTED: /(\\.|[^"\\])*/
NEWLINE: /(\r?\n[\t ]*)+/
"""


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


def matcher_of(lark: str) -> LLMatcher:
    matcher = LLMatcher(_bytes(), grammar_text(Grammar(lark=lark)), log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def in_quotes(definition: str) -> str:
    """A grammar of strings of JSON."""
    text = rewritten(definition, IN_JSON)
    return "\n".join([rf'start: "\"" {text.start} "\""', *text.lines])


def accepts(matcher: LLMatcher, text: str) -> bool | None:
    """None where a limit is tripped."""
    matcher.reset()
    ids = list(text.encode())
    accepted = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
    return None if matcher.is_error() else accepted


def drawn(matcher: LLMatcher, random: Random) -> str:
    """A text that a grammar allows the beginning of, or all of it."""
    matcher.reset()
    text = bytearray()
    while len(text) < 16 and not matcher.is_error() and not (matcher.is_accepting() and random.random() < 0.3):
        mask = matcher.compute_bitmask()
        allowed = [code for code in range(128) if mask[code // 8] >> code % 8 & 1]
        liked = [code for code in allowed if chr(code) in LETTERS + "nt"]
        if not allowed:
            break
        text.append(random.choice(liked or allowed))
        matcher.consume_token(text[-1])
    return text.decode()


def said(string: str) -> str | None:
    """What the content of a string of JSON says, perhaps cut off; None where it is none."""
    try:
        text = json.loads(f'"{string}"')
    except ValueError:
        return None
    return str(text)


def written(text: str) -> bool:
    """Whether all letters of a text have a form in JSON that is used."""
    return not any(letter in IN_JSON.without for letter in text)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_texts_of_random_grammars(seed: int) -> None:
    random = Random(seed)
    definition = random_grammar(random)
    original = matcher_of(definition)
    try:
        changed = matcher_of(in_quotes(definition))
    except LarkError:  # it matches no text at all, as rules of rules may
        return
    texts = {drawn(original, random) for _ in range(4)}
    texts |= {said(drawn(changed, random).removeprefix('"').removesuffix('"')) or "" for _ in range(4)}
    texts |= {"".join(random.choices(LETTERS, k=random.randrange(6))) for _ in range(4)}
    for text in filter(written, sorted(texts)):
        of_original, of_changed = accepts(original, text), accepts(changed, json.dumps(text, ensure_ascii=False))
        if None not in (of_original, of_changed):
            assert of_changed == of_original, (definition, text)


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        (
            PROGRAM,
            ['a = "x\\"y";\n\nb=1;', 'a="x" # c "q"\n;', 'a=\n"";', 'a=(\t"é\\\\")\n;', "a=[ 1,\n2 ];b=[];"],
            ["", "a", 'a = "x\n', 'a="x" # c;', "A=1;", 'a="\\";'],
        ),
        (INDENTED, ["a\n", 'b\\\r\n\n\t"\\n"\n', "\n", "ü b\n\n"], ["a", 'b"\n', '"\\"\n', "a\r"]),
        (r'start: W "\""' + "\nW: /[a-z\\n]+/", ['ab"', '\n"', 'a\n\n"'], ["ab", '"', 'ab\\"']),
        (r'start: "\n" | "\\" "n" "!"', ["\n", "\\n!"], ["\\n", "\n!", "\\"]),
        (r'start: A "\t"' + "\nA: /[a-z]*/ & ~/.*stop.*/", ["go\t", "\t"], ["stop\t", "go"]),
        (r'start: "say"i "a".."c"' + "\n", ["SayA".replace("A", "a"), "sayc"], ["say", "saYd"]),
        (r"start: /[\s\S]*/", ["", "\r\n\t\"'\\/\b\f", "\u2028\x7f😀"], []),
    ],
)
def test_texts_of_grammars(definition: str, good: list[str], bad: list[str]) -> None:
    original, changed = matcher_of(definition), matcher_of(in_quotes(definition))
    for text in good + bad:
        assert accepts(original, text) == (text in good), text
        assert accepts(changed, json.dumps(text, ensure_ascii=False)) == (text in good), text


def test_what_is_ignored_may_stand_at_the_end_and_not_at_the_beginning() -> None:
    changed = matcher_of(in_quotes('start: "a" "b"\n%ignore /[ \\n]/'))
    assert accepts(changed, r'"a \n\nb\n "')
    assert not accepts(changed, '" ab"')


def test_texts_that_have_other_forms_in_json_have_one() -> None:
    changed = matcher_of(in_quotes(r"start: /[\s\S]{1}/"))
    for form in (r"\u0061", r"\/", r"\u000a", r"\u000b", "\n", '"'):
        assert not accepts(changed, f'"{form}"')


def test_texts_as_they_are() -> None:
    text = rewritten(PROGRAM, AS_IT_IS)
    matcher = matcher_of("\n".join([f'start: "<" {text.start} ">"', *text.lines]))
    assert accepts(matcher, '<a = "x\\"y";\n\nb=1;>')
    assert not accepts(matcher, "<a = 1>")
    assert text.can_hold("\n")
    assert not text.can_hold("é\n") and not rewritten('start: "a"', AS_IT_IS).can_hold("A")
    assert rewritten('start: "a"i', AS_IT_IS).can_hold("A")


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("", "no rule named start"),
        ("begin: A", "no rule named start"),
        ("start: A", "terminal A is not defined"),
        ("start: a", "rule a is not defined"),
        ("start: A\nA: B\nB: A", "A refers to itself"),
        ("start: A\nA: b\nb: A", "refers to the rule b"),
        ("start: start", "no text at all"),
        ('start: "a" start', "no text at all"),
        ('start: "a" & "b"', "for terminals only"),
        ("start: ~start", "for terminals only"),
        ('start: "\\u0001"', "control character U\\+0001"),
        ("start: /\\x00/", "control character U\\+0000"),
        ("start: ~/a/ & /[z-a]/\n", "for terminals only"),
        ("start: /[z-a]/", "class of letters cannot be read"),
        ('start: "a"~101', "up to 101 times, the limit is 100"),
    ],
)
def test_what_is_refused(definition: str, words: str) -> None:
    with pytest.raises(LarkError, match=words):
        rewritten(definition, IN_JSON)


def hostile() -> dict[str, str]:
    lines = 3000
    return {
        "long": "start: " + "a" * MOST_BYTES,
        "classes": "start: " + "".join(f"/[{chr(0x4E00 + number)}]/ " for number in range(300)),
        "terminals": "start: " + " | ".join(f"T{number}" for number in range(1500)) + "\n"
        + "\n".join(f'T{number}: "{number}"' for number in range(1500)),
        "chain": "start: T0\n" + "\n".join(f"T{n}: T{n + 1}" for n in range(lines // 2)) + f'\nT{lines // 2}: "x"',
        "rules": "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(lines // 2)) + f'\nr{lines // 2}: "x"',
        "brackets": "start: " + "(" * 5000 + '"a"' + ")" * 5000,
        "groups": "start: /" + "(" * 5000 + "a" + ")" * 5000 + "/",
        "nested classes": "start: /" + "[" * 5000 + "a" + "]" * 5000 + "/",
        "counts": "start: " + "(" * 50 + '"a"' + "){100}" * 50,
        "many counts": "start: " + '"a"{100} ' * 3000,
        "regex counts": "start: /" + "(" * 50 + "a" + "){999999}" * 50 + "/",
        "doubling": "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(60)) + '\nT60: "\\n"',
        "cuts": "start: /" + r"\n?" * 10000 + "/",
        "denied": "start: A\nA: " + "~" * 30000 + '"a"',
        "unknown words": "\x00" * 1000,
        "strings": 'start: "' + "\\" * 30001 + '"',
        "numbers": 'start: "a"~' + "9" * 30000,
    }  # fmt: skip


@pytest.mark.parametrize("name", hostile())
def test_what_becomes_of_hostile_definitions_is_bounded(name: str) -> None:
    message, size = "", 0
    try:
        size = sum(map(len, rewritten(hostile()[name], IN_JSON).lines))
    except LarkError as error:
        message = str(error)
    assert bool(message) != bool(size)
    assert len(message) < 400
    assert size < 1 << 22


WORDS = [*'()[]{}|~&*+?.:"/\\n#%<>@!,-^$ ', "start", "A", "\n", "start: ", "..", "->", "%ignore", "%import common.",
         "INT", "a{2}", "[^a]", r"\x", "(?i)", "é", "\x00"]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join) | st.text(max_size=20), st.integers(0, len(PROGRAM)))
def test_what_is_no_definition_is_refused_in_words(text: str, place: int) -> None:
    for definition in (text, f"start: A {text}\nA: /{text}/", PROGRAM[:place] + text + PROGRAM[place:]):
        for encoding in (IN_JSON, AS_IT_IS):
            try:
                said = "".join(rewritten(definition, encoding).lines)
            except LarkError as error:
                said = str(error)
            assert said


def test_prefixes_keep_names_of_two_grammars_apart() -> None:
    def names(prefix: str, encoding: Encoding) -> set[str]:
        return {line.partition(":")[0] for line in rewritten(PROGRAM, encoding, prefix).lines}

    assert not names("c0x", IN_JSON) & names("c1x", IN_JSON)
