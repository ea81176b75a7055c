"""Where a grammar begins to hold in the answers of a model that reasons, and what it may stand beside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gateway import codec
from gateway.openai.answer_parts import message
from gateway.output_parsers.parts import CallBegin
from gateway.text.jobs import Jobs
from gateway.text.prepared import Prepared, WorkerTask
from slipstream.rpc.errors import InvalidArgumentError
from support.tool_template import TEMPLATE, WEATHER
from support.virtual_verify import INFO as TINY

INFO = replace(TINY, vocab_size=520)
CHOICE = {"structured_outputs": {"choice": ["a"]}}
OPENED = TEMPLATE + "{{ '<think>\\n' }}"
HARMONY = "<|start|>{{ tools }}<|channel|>"
NAMED = {"type": "function", "function": {"name": "get_weather"}}
Prepare = Callable[..., Prepared]


@pytest.fixture(scope="module")
def thinking_folder(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer in which the ends of reasoning are tokens."""
    folder = shutil.copytree(tokenizer_folder, tmp_path_factory.mktemp("thinking") / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def prepare(thinking_folder: Path, tmp_path: Path) -> Prepare:
    def prepare(
        template: str = TEMPLATE, folder: Path = thinking_folder, parser: str = "auto", **fields: Any
    ) -> Prepared:
        file = tmp_path / "template.jinja"
        file.write_text(template, "utf-8")
        jobs = Jobs.load(
            folder, file, max_bytes=1 << 20, max_choices=8, stages=lambda file: None, reasoning_parser=parser
        )  # fmt: skip
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]} | fields
        answer = jobs.run(WorkerTask.CHAT, bytearray(json.dumps(body).encode()), INFO)
        assert isinstance(answer, Prepared)
        return answer

    return prepare


def starts(request: Prepared) -> tuple[int, ...]:
    assert request.sampling.grammar is not None
    return request.sampling.grammar.starts_after


def test_a_grammar_holds_behind_reasoning_where_there_may_be_some(prepare: Prepare, thinking_folder: Path) -> None:
    end = Tokenizer.from_file(str(thinking_folder / "tokenizer.json")).token_to_id("</think>")
    assert starts(prepare(**CHOICE)) == (end,)
    assert starts(prepare(OPENED, **CHOICE)) == (end,)
    assert starts(prepare(parser="deepseek_r1", **CHOICE)) == (end,)
    assert starts(prepare(tools=[WEATHER], tool_choice="required")) == (end,)
    assert starts(prepare(chat_template_kwargs={"enable_thinking": False}, **CHOICE)) == ()
    assert starts(prepare(parser="none", **CHOICE)) == ()
    assert starts(prepare("{{ messages[0].content.split('</think>')[-1] }}", **CHOICE)) == ()
    assert prepare(OPENED).answer is not None
    assert prepare(parser="none").answer is None


def test_without_a_token_for_its_end_reasoning_must_not_be_sure(prepare: Prepare, tokenizer_folder: Path) -> None:
    assert starts(prepare(folder=tokenizer_folder, **CHOICE)) == ()
    with pytest.raises(InvalidArgumentError, match="no token of its own") as caught:
        prepare(OPENED, tokenizer_folder, **CHOICE)
    assert caught.value.field == "structured_outputs.choice"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (CHOICE, "structured_outputs.choice"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "required"} | CHOICE, "tool_choice"),
    ],
)
def test_answers_in_channels_take_no_grammar(prepare: Prepare, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError, match="channels") as caught:
        prepare(HARMONY, **fields)
    assert caught.value.field == field


def test_answers_in_channels_have_calls_of_the_models_own(prepare: Prepare) -> None:
    free = prepare(HARMONY, tools=[WEATHER])
    assert free.answer is not None
    assert free.answer.names.tools == "openai"


@pytest.mark.parametrize(("shown", "id_length"), [("[TOOL_CALLS]", 9), ("<|python_start|>", 29)])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_ids_of_calls_are_those_of_the_model_even_where_calls_are_forced(
    prepare: Prepare, shown: str, id_length: int, choice: Any
) -> None:
    form = prepare(f"{{{{ '{shown}' }}}}{{{{ tools }}}}", tools=[WEATHER], tool_choice=choice).answer
    assert form is not None
    (call,) = message([CallBegin(0, "get_weather")], form, ())["tool_calls"]
    assert (len(call["id"]), call["id"].replace("call_", "", 1).isalnum()) == (id_length, True)


def test_a_grammar_is_encoded_once_for_all_choices(prepare: Prepare) -> None:
    request = prepare(n=2, **CHOICE)
    assert request.grammar_wire == codec.write_grammar(request.sampling.grammar) != b""
    assert prepare().grammar_wire == b""


def test_the_field_that_asks_for_a_grammar_is_known(prepare: Prepare) -> None:
    assert prepare(**CHOICE).grammar_field == "structured_outputs.choice"
    assert prepare(tools=[WEATHER], tool_choice="required", **CHOICE).grammar_field == "tools"
    assert prepare().grammar_field == ""
