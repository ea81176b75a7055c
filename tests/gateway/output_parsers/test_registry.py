"""Which parsers a chat template asks for, and where a prompt leaves the model."""

from __future__ import annotations

import pytest

from gateway.output_parsers.registry import AnswerForm, Names, detected, markers, new_parser, reasoning_state
from gateway.text.answer_form import parser_names
from support.parsed_answers import Answer, form, read
from support.tool_template import TEMPLATE


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (TEMPLATE, Names("hermes", "qwen3")),
        ("{{ '<tool_call>\\n<function=' ~ name ~ '>\\n<parameter=' }}", Names("qwen3_coder", None)),
        ("{{ '<|python_tag|>' }}", Names("llama3_json", None)),
        ("{{ '<|python_start|>' }}", Names("pythonic", None)),
        ("{{ '[TOOL_CALLS]' }}{{ '[THINK]' }}{{ '[/THINK]' }}", Names("mistral", "mistral")),
        ("{{ '<|start|>assistant<|channel|>final<|message|>' }}", Names("openai", "openai_gptoss")),
        ("{{ content.split('</think>')[-1] }}", Names(None, "qwen3")),
        ("{{ message.content }}", Names()),
    ],
)
def test_a_template_shows_the_form_of_its_answers(template: str, names: Names) -> None:
    assert detected(template) == parser_names(template, "auto", "auto") == names


def test_settings_stand_against_what_a_template_shows() -> None:
    assert parser_names(TEMPLATE, "none", "none") == Names()
    assert parser_names(TEMPLATE, "mistral", "deepseek_r1") == Names("mistral", "deepseek_r1")
    assert parser_names("", "openai", "auto") == Names("openai", "openai_gptoss")


def test_a_prompt_may_end_before_within_or_behind_reasoning() -> None:
    names = Names(None, "qwen3")
    ends = {"<|assistant|>": False, "<|assistant|><think>\n": True, "<think>\n\n</think>\n\n": None}
    assert {prompt: reasoning_state(names, prompt) for prompt in ends} == ends
    assert reasoning_state(Names(), "<think>") is False
    assert read(AnswerForm(names, True), "Hm.\n</think>\n\nYes.") == Answer("Hm.", "Yes.")
    assert read(AnswerForm(names, None), "<think>Yes.") == Answer("", "<think>Yes.")
    assert read(AnswerForm(names, False), "Yes.</think>") == Answer("", "Yes.</think>")


def test_a_model_that_leaves_its_first_tag_out_reasons_from_the_start() -> None:
    assert read(form(None, "deepseek_r1"), "Hm.</think>Yes.") == Answer("Hm.", "Yes.")
    assert read(form(None, "deepseek_r1"), "<think>Hm.</think>Yes.") == Answer("Hm.", "Yes.")
    assert new_parser(form(None, "deepseek_r1")).in_reasoning


def test_markers_of_both_parsers_are_shown() -> None:
    assert markers(Names("hermes", "qwen3")) == ("<tool_call>", "</tool_call>", "<think>", "</think>")
    assert markers(Names()) == ()
