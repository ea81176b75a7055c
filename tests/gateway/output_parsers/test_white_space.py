"""White space costs time in proportion to its length, and is given to clients where it belongs to the answer."""

from __future__ import annotations

import time

import pytest

from support.parsed_answers import WEATHER, Answer, answer_of, form, parts_of, read

LENGTH = 60_000
SECONDS = 1.0  # a twentieth of it is taken; time in proportion to the square takes several
OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'


@pytest.mark.parametrize(
    ("parser", "reasoning", "begin", "piece"),
    [
        (None, None, "", "\n"),
        (None, "qwen3", "", "\n"),
        (None, "qwen3", "<think>a", "\n"),
        (None, "qwen3", "<think>a</think>", "\n"),
        ("llama3_json", None, "", "\n"),
        ("llama3_json", None, "[", " "),
        ("llama3_json", None, OSLO, ";"),
        ("llama3_json", None, f"[{OSLO}", ","),
        ("pythonic", None, "<|python_start|>", "\n"),
        ("pythonic", None, "[", "\n"),
        ("pythonic", None, "[add(a=1)", ","),
        ("pythonic", None, "[add(a=1)]", "\n"),
        ("mistral", "mistral", "[TOOL_CALLS]", "\n"),
        ("qwen3_coder", None, "<tool_call>", "\n"),
        ("qwen3_coder", None, "<function=write><parameter=n>", "\n"),
        ("qwen3_coder", None, "<function=write></function>", "\n"),
        ("hermes", None, "<tool_call>", "\n"),
        ("hermes", None, f"<tool_call>{OSLO}", "\n"),
        ("hermes", None, f"<tool_call>{OSLO}", " x"),
    ],
)
def test_its_time_is_in_proportion(parser: str | None, reasoning: str | None, begin: str, piece: str) -> None:
    pieces = [begin, *[piece] * LENGTH, "x"]
    began = time.thread_time()
    parts = parts_of(form(parser, reasoning), pieces)
    assert time.thread_time() - began < SECONDS
    assert answer_of(parts) == answer_of(parts_of(form(parser, reasoning), ["".join(pieces)]))


def test_between_calls_in_pieces_it_is_dropped_and_within_text_it_stays() -> None:
    calls = f"[{OSLO} \n , \n {OSLO}] \n ; \n {OSLO} \n "
    assert read(form("llama3_json"), calls) == Answer(calls=(WEATHER,) * 3)
    assert read(form("llama3_json"), "\n\n , ; < \n\n<|py \n , x \n\n") == Answer(
        content="\n\n , ; < \n\n<|py \n , x \n\n"
    )
    assert read(form("hermes", "qwen3"), " \n <think>\n\na \n\n b\n\n</think>\n\n \n c \n").reasoning == "a \n\n b"
