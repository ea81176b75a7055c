"""What is taken, what is refused and by which name."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from slipstream.grammar.check import MAX_BYTES, MAX_CHOICES, check, parser_limits
from slipstream.grammar.grammar import Grammar, StructuralTag, TagRule
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> GrammarTokenizer:
    return load_tokenizer(demo_model, vocab_size=8200, eos_token_ids=(3, 2))


def schema(content: Any, **options: Any) -> Grammar:
    return Grammar(json_schema=json.dumps(content), **options)


def allows(tokenizer: GrammarTokenizer, grammar: Grammar, text: str) -> bool:
    """Whether a text is an output from its first to its last token; <|end|> and the like are the special tokens."""
    matcher = LLMatcher(tokenizer.tokens, check(grammar, tokenizer), log_level=0, limits=parser_limits())
    tokens = tokenizer.tokens.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "field", "named"),
    [
        (schema({"not": {}}), "grammar.json_schema", '"not"'),
        (schema({"type": "array", "uniqueItems": True}), "grammar.json_schema", "uniqueItems"),
        (schema({"type": "array", "contains": {}}), "grammar.json_schema", "contains"),
        (schema({"if": {}, "then": {}}), "grammar.json_schema", '"if"'),
        (schema({"not": {}, "x-guidance": {"lenient": True}}), "grammar.json_schema", '"not"'),
        (schema({"oneOf": [{"type": "string"}, {"maxLength": 3}]}), "grammar.json_schema", "oneOf"),
        (schema({"$ref": "https://example.com/a.json"}), "grammar.json_schema", "https://example.com/a.json"),
        (schema({"type": "string", "pattern": "(?=a)b"}), "grammar.json_schema", "look-around"),
        (schema({"type": "string", "format": "nonsense"}), "grammar.json_schema", "nonsense"),
        (Grammar(json_schema="[1]"), "grammar.json_schema", "object"),
        (Grammar(json_schema='{"a":'), "grammar.json_schema", "line 1 column 5"),
        (Grammar(json_schema="[" * 5000), "grammar.json_schema", "recursion limit"),
        (Grammar(json_schema='{"a":' * 5000), "grammar.json_schema", "recursion limit"),
        (Grammar(regex="(a"), "grammar.regex", "unclosed group"),
        (Grammar(lark="start: nobody"), "grammar.lark", "nobody"),
        (Grammar(lark="start: <|nobody|>"), "grammar.lark", "<|nobody|>"),
        (Grammar(lark='start: %json {"not": {}, "x-guidance": {"lenient": true}}'), "grammar.lark", '"not"'),
        (Grammar(choice=()), "grammar.choice", "from 1 to"),
        (Grammar(choice=("a", "")), "grammar.choice", "empty"),
        (Grammar(choice=("a",) * (MAX_CHOICES + 1)), "grammar.choice", str(MAX_CHOICES)),
        (Grammar(regex="a" * (MAX_BYTES + 1)), "grammar.regex", str(MAX_BYTES)),
        (Grammar(), "grammar", "nothing"),
        (Grammar(regex="a", starts_after=(8200,)), "grammar.starts_after", "8199"),
        (Grammar(regex="a", starts_after=(1,) * 17), "grammar.starts_after", "16"),
        (Grammar(structural_tag=StructuralTag(())), "grammar.structural_tag.tags", "from 1 to"),
        (
            Grammar(structural_tag=StructuralTag((TagRule("<a", "<b>", "", regex="x"),))),
            "grammar.structural_tag.tags[0].begin",
            "trigger",
        ),
        (
            Grammar(structural_tag=StructuralTag((TagRule("<a", "<a>", ""),))),
            "grammar.structural_tag.tags[0]",
            "one of",
        ),
    ],
)
def test_a_refusal_names_field_and_reason(
    tokenizer: GrammarTokenizer, grammar: Grammar, field: str, named: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        check(grammar, tokenizer)
    assert refused.value.field == field
    assert named in refused.value.message
    assert len(refused.value.message) < 500


def test_one_of_is_taken_as_any_of_where_that_is_asked_for(tokenizer: GrammarTokenizer) -> None:
    branches = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}
    assert allows(tokenizer, schema(branches, coerce_one_of=True), '"abcde"')


def test_white_space_is_bounded_by_default_and_none_on_demand(tokenizer: GrammarTokenizer) -> None:
    array = {"type": "array", "items": {"type": "integer"}}
    assert allows(tokenizer, schema(array), "[1,\n  2]")
    assert not allows(tokenizer, schema(array), f"[1,{' ' * 40}2]")
    assert not allows(tokenizer, schema(array, whitespace_pattern=""), "[1, 2]")
    assert allows(tokenizer, schema(array, whitespace_pattern=" "), "[1, 2]")
    assert not allows(tokenizer, schema({**array, "x-guidance": {"item_separator": ";"}}), "[1;2]")


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (Grammar(json_object=True), '{"a": [1, "b"]}', "[1]"),
        (Grammar(regex="[a-c]/\\d+"), "b/12", "b/x"),
        (Grammar(lark='start: "x" start "y" | "z"'), "xxzyy", "xxzy"),
        (Grammar(choice=("blue", 'say "é"\n')), 'say "é"\n', "red"),
        (Grammar(choice=("blue", "bluer")), "bluer", "blu"),
    ],
)
def test_each_kind_allows_what_it_says(tokenizer: GrammarTokenizer, grammar: Grammar, right: str, wrong: str) -> None:
    assert allows(tokenizer, grammar, right)
    assert not allows(tokenizer, grammar, wrong)


def tags(**options: bool) -> Grammar:
    integer = json.dumps({"type": "integer"})
    return Grammar(
        structural_tag=StructuralTag(
            (
                TagRule("<f", "<f=a>", "</f>", json_schema=integer),
                TagRule("<f", "<f=b>", "</f>", regex="[xy]+"),
                TagRule("<|user|>", "<|user|>!", "<|system|>", lark='start: "q"'),
            ),
            **options,
        )
    )


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (tags(), ["", "free text", "a <f=a>12</f> b <f=b>xyx</f>", "<|user|>!q<|system|>"], ["<f=a>x</f>", "a <fb"]),
        (tags(at_least_one=True), ["a <f=a>1</f> b"], ["free text"]),
        (tags(no_free_text=True), ["<f=a>1</f>", "<f=a>1</f><f=b>x</f>"], ["", "a <f=a>1</f>", "<f=a>1</f> b"]),
        (tags(stop_after_first=True), ["free", "a <f=a>1</f>"], ["a <f=a>1</f> b"]),
        (tags(no_free_text=True, stop_after_first=True), ["<f=a>1</f>"], ["<f=a>1</f><f=b>x</f>", ""]),
    ],
)
def test_tags_stand_in_free_text(
    tokenizer: GrammarTokenizer, grammar: Grammar, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not allows(tokenizer, grammar, text)] == []
    assert [text for text in wrong if allows(tokenizer, grammar, text)] == []


def test_without_a_tokenizer_the_grammar_itself_is_checked() -> None:
    assert check(schema({"type": "object"}))
    with pytest.raises(InvalidArgumentError, match="contains"):
        check(schema({"contains": {}}))


def test_ids_beyond_the_tokenizer_are_never_allowed(tokenizer: GrammarTokenizer) -> None:
    matcher = LLMatcher(tokenizer.tokens, check(Grammar(regex="(.|\n)*"), tokenizer), log_level=0)
    bits = matcher.compute_bitmask()
    assert int.from_bytes(bits, "little") >> 8192 == 0


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path, vocab_size=10, eos_token_ids=(1,))
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(FailedPreconditionError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path, vocab_size=10, eos_token_ids=(1,))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(lark="start: r0\n" + "\n".join(f'r{n}: r{n + 1} "x"' for n in range(8000)) + '\nr8000: "z"'),
        schema(
            {
                "$ref": "#/$defs/0",
                "$defs": {str(n): {"properties": {"a": {"$ref": f"#/$defs/{n + 1}"}}} for n in range(3000)}
                | {"3000": {}},
            }
        ),
        Grammar(lark="start: " + "(" * 20000 + '"a"' + ")" * 20000),
        Grammar(regex="(" * 20000 + "a" + ")" * 20000),
        Grammar(json_schema='{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}'),
    ],
    ids=["rules", "references", "brackets", "groups", "a circle"],
)
def test_what_refers_to_itself_without_end_ends_no_process(tokenizer: GrammarTokenizer, grammar: Grammar) -> None:
    with suppress(InvalidArgumentError):
        check(grammar, tokenizer)
