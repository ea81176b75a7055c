"""The chat template's roles, and that it renders what training saw."""

from pathlib import Path

import jinja2
import pytest
from tokenizers import Tokenizer

from training.demo_models.prepare import ANSWER, Encoder
from training.demo_models.tokenizer import BEGIN, END_OF_TURN, chat_prompt, save_tokenizer, stop_ids


@pytest.fixture
def directory(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    save_tokenizer(tokenizer, tmp_path, 4096)
    return tmp_path


CONVERSATION = [
    {"role": "system", "content": "a road"},
    {"role": "user", "content": " the rider 12 "},
    {"role": "assistant", "content": "hills\n  and towns"},
    {"role": "user", "content": "again"},
]


def test_template_equals_our_prompt(directory: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(directory)
    ids = loaded.apply_chat_template(CONVERSATION, add_generation_prompt=True, return_dict=False)
    assert ids == chat_prompt(tokenizer, CONVERSATION)
    assert ids[0] == tokenizer.token_to_id(BEGIN) and ids.count(ids[0]) == 1
    assert loaded.eos_token_id == stop_ids(tokenizer)[0]
    assert loaded("the rider").input_ids[0] == loaded.bos_token_id


def test_training_documents_equal_the_template(directory: Path, tokenizer: Tokenizer) -> None:
    encoder = Encoder(str(directory / "tokenizer.json"), ["s"], 512, 0, False)
    record = {"source": "s", "kind": "chat", "messages": CONVERSATION[:3]}
    documents = encoder.encode(0, [record])
    ids = documents.tokens.tolist()
    prompt = chat_prompt(tokenizer, CONVERSATION[:2])
    assert ids[: len(prompt)] == prompt
    answer = [token for token, kind in zip(ids, documents.types, strict=True) if kind == ANSWER]
    assert tokenizer.decode(answer) == "hills\n  and towns"
    assert answer[-1] == tokenizer.token_to_id(END_OF_TURN)


@pytest.mark.parametrize(
    "messages",
    [[{"role": "narrator", "content": "x"}], [CONVERSATION[1], {"role": "system", "content": "late"}]],
)
def test_template_refuses_unknown_roles_and_late_system(directory: Path, messages: list[dict[str, str]]) -> None:
    from transformers import AutoTokenizer

    with pytest.raises(jinja2.TemplateError):
        AutoTokenizer.from_pretrained(directory).apply_chat_template(messages)


def test_template_writes_tools_calls_and_results(directory: Path) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(directory)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "\u00e4"}}}
    messages = [
        *CONVERSATION[:2],
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    ]
    text = loaded.apply_chat_template(messages, tools=[tool], add_generation_prompt=True, tokenize=False)
    called = '<tool_call>\n{"name": "f", "arguments": {"a": "\u00e4"}}\n</tool_call>'
    results = "".join(f"<tool_response>\n{number}\n</tool_response>" for number in (1, 2))
    function = '{"name": "f", "parameters": {"type": "object"}}'
    form = '<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>'
    told = f"You can call these functions:\n{function}\nTo call one, answer:\n{form}"
    assert text == (
        f"<|begin|><|system|>a road\n\n{told}<|end|><|user|>the rider 12<|end|>"
        f"<|assistant|>{called}{called}<|end|><|user|>{results}<|end|><|assistant|>"
    )


def test_round_trip_of_any_text(tokenizer: Tokenizer) -> None:
    text = "Grüße, 1234 — 日本 \U0001f600\n\tdef f(x):\n        return x  # ok\r\n"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text
