"""What a body's fields make of the grammar, and what is refused by their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.text.jobs import Jobs
from gateway.text.prepared import Prepared, WorkerTask
from slipstream.grammar.grammar import Grammar, StructuralTag, TagRule
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import gateway_pb2
from support.virtual_verify import INFO

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}, {"begin": "<g>", "end": "</g>"}],
    "triggers": ["<f", "<g"],
}
TAG_RULES = (
    TagRule("<f", "<f>", "</f>", json_schema=json.dumps(SCHEMA)),
    TagRule("<g", "<g>", "</g>", json_schema='{"type": "object"}'),
)

Prepare = Callable[[dict[str, Any]], Prepared]


@pytest.fixture(scope="module")
def jobs(tokenizer_folder: Path) -> Jobs:
    return Jobs.load(tokenizer_folder, max_bytes=1 << 20, max_choices=8, stages=lambda file: None)


@pytest.fixture(scope="module")
def prepare(jobs: Jobs) -> Prepare:
    def prepare(fields: dict[str, Any]) -> Prepared:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]} | fields
        prepared = jobs.run(WorkerTask.CHAT, bytearray(json.dumps(body).encode()), INFO)
        assert isinstance(prepared, Prepared)
        return prepared

    return prepare


def named(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema} | more}


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar(json_object=True)),
        ({"response_format": named(SCHEMA, strict=True)}, Grammar(json_schema=json.dumps(SCHEMA))),
        ({"response_format": named(SCHEMA, strict=False)}, Grammar(json_schema=json.dumps(SCHEMA))),
        ({"response_format": named(None)}, Grammar(json_schema='{"type": "object"}')),
        ({"response_format": TAGS}, Grammar(structural_tag=StructuralTag(TAG_RULES))),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar(json_schema=json.dumps(SCHEMA))),
        ({"structured_outputs": {"json": '{"type":"null"}'}}, Grammar(json_schema='{"type":"null"}')),
        ({"structured_outputs": {"regex": "[a-z]+"}}, Grammar(regex="[a-z]+")),
        ({"structured_outputs": {"choice": ["yes", "no", "yes"]}}, Grammar(choice=("yes", "no"))),
        ({"structured_outputs": {"grammar": 'start: "a"+'}}, Grammar(lark='start: "a"+')),
        ({"structured_outputs": {"structural_tag": TAGS}}, Grammar(structural_tag=StructuralTag(TAG_RULES))),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            Grammar(json_object=True, whitespace_pattern=""),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
            Grammar(json_schema=json.dumps(SCHEMA), whitespace_pattern=" ?"),
        ),
    ],
)  # fmt: skip
def test_fields_become_a_grammar(prepare: Prepare, fields: dict[str, Any], grammar: Grammar | None) -> None:
    assert prepare(fields).sampling.grammar == grammar


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"response_format": named({"not": {}})}, "response_format.json_schema.schema", '"not"'),
        ({"response_format": named({"$ref": "#/nowhere"})}, "response_format.json_schema.schema", "nowhere"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'json_schema'"),
        ({"response_format": named(SCHEMA) | {"strict": True}}, "response_format.strict", "unknown"),
        ({"response_format": named(SCHEMA, name="a b")}, "response_format.json_schema.name", "pattern"),
        ({"response_format": TAGS | {"triggers": ["<x"]}}, "response_format.structures[0].begin", "triggers"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of json, regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one of"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex", "look-around"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "regex"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", ""),
        ({"structured_outputs": {"json": {"uniqueItems": True}}}, "structured_outputs.json", "uniqueItems"),
        ({"structured_outputs": {"grammar": "root ::= a"}}, "structured_outputs.grammar", "GBNF"),
        ({"structured_outputs": {"grammar": "start: b"}}, "structured_outputs.grammar", "b"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "}},
            "structured_outputs",
            "exclude each other",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "exclude each other",
        ),
        ({"guided_json": SCHEMA}, "guided_json", "use structured_outputs.json"),
        ({"guided_choice": ["a"]}, "guided_choice", "use structured_outputs.choice"),
        ({"ebnf": "root ::= a"}, "ebnf", "use structured_outputs.grammar"),
        ({"guided_regex": "a"}, "guided_regex", "use structured_outputs.regex"),
        ({"guided_grammar": 'start: "a"'}, "guided_grammar", "use structured_outputs.grammar"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "use structured_outputs.whitespace_pattern"),
        ({"json_schema": "{}"}, "json_schema", "use structured_outputs.json"),
        ({"regex": "a"}, "regex", "use structured_outputs.regex"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(
    prepare: Prepare, fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        prepare(fields)
    assert caught.value.field == field
    assert words in caught.value.message


def test_long_lists_of_numbers_stay_in_their_places(prepare: Prepare) -> None:
    schema = {"enum": list(range(3000))}
    grammar = prepare({"response_format": named(schema)}).sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.json_schema or "") == schema


def test_the_keywords_that_the_official_client_writes_are_taken(prepare: Prepare) -> None:
    """As its `to_strict_json_schema` has them: $defs, $ref beside a description, anyOf with null, const, enum."""
    step = {"type": "object", "title": "Step", "properties": {"n": {"title": "N", "type": "integer"},
            "next": {"anyOf": [{"$ref": "#/$defs/Step"}, {"type": "null"}]}}, "required": ["n", "next"],
            "additionalProperties": False}  # fmt: skip
    schema = {
        "$defs": {"Step": step, "Kind": {"enum": ["a", "b"], "title": "Kind", "type": "string"}},
        "properties": {
            "kind": {"$ref": "#/$defs/Kind", "description": "Which."},
            "only": {"const": "x", "title": "Only", "type": "string"},
            "steps": {"items": {"$ref": "#/$defs/Step"}, "type": "array"},
        },
        "required": ["kind", "only", "steps"],
        "title": "Answer",
        "type": "object",
        "additionalProperties": False,
    }
    grammar = prepare({"response_format": named(schema, strict=True)}).sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.json_schema or "") == schema


def test_completions_and_grpc_take_grammars_too(jobs: Jobs) -> None:
    body = {"model": "tiny", "prompt": "x", "structured_outputs": {"choice": ["a"]}}
    prepared = jobs.run(WorkerTask.COMPLETION, bytearray(json.dumps(body).encode()), INFO)
    assert isinstance(prepared, Prepared)
    assert (prepared.sampling.grammar, prepared.grammar_field) == (Grammar(choice=("a",)), "structured_outputs.choice")

    request = gateway_pb2.GenerateRequest(model="tiny", text="x")
    request.sampling.grammar.json_object = True
    prepared = jobs.run(WorkerTask.GENERATE, bytearray(request.SerializeToString()), INFO)
    assert isinstance(prepared, Prepared)
    assert prepared.sampling.grammar == Grammar(json_object=True)
    request.sampling.grammar.json_schema = '{"not": {}}'
    with pytest.raises(InvalidArgumentError, match="not") as caught:
        jobs.run(WorkerTask.GENERATE, bytearray(request.SerializeToString()), INFO)
    assert caught.value.field == "sampling.grammar.json_schema"


def test_a_grammar_may_name_tokens(prepare: Prepare) -> None:
    for lark in ("start: <|user|> /a+/", "start: <[5]>", 'start: "<" "a"'):
        assert prepare({"structured_outputs": {"grammar": lark}}).sampling.grammar == Grammar(lark=lark)
    with pytest.raises(InvalidArgumentError, match="unknown special token") as caught:
        prepare({"structured_outputs": {"grammar": "start: <|nobody|>"}})
    assert caught.value.field == "structured_outputs.grammar"


def test_a_grammar_has_a_size(prepare: Prepare) -> None:
    with pytest.raises(InvalidArgumentError, match="the limit is") as caught:
        prepare({"structured_outputs": {"choice": ["x" * 300_000]}})
    assert caught.value.field == "structured_outputs.choice"
