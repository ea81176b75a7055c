"""Recordings are written token by token as the gateway would send them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gateway.tokens.tokenizer import Tokenizer
from slipstream.chat_template import ChatTemplate
from training.prompts.records import Prompt, Turn
from training.recorded import chat_tokenizer
from training.recorded.chat_tokenizer import ChatTokenizer
from training.recorded.rendering import Rendering

END = 3
LINES = """\
{%- for message in messages %}
{{- '<|' + message.role + '|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>assistant\\n' }}{% endif %}"""
FORGETFUL = """\
{%- for message in messages %}{{ '<|' + message.role + '|>' }}
{%- if loop.last and message.role == 'assistant' %}<think>{% endif %}{{ message.content + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
TALK = [
    ("system", "Be brief."),
    ("user", "Hi  there"),
    ("assistant", " Ho \n\n1"),
    ("user", "2+2?"),
    ("assistant", "4."),
]


def conversation(said):
    return Prompt(tuple(Turn(role, content) for role, content in said), "file:1")


def with_template(demo_model: Path, folder: Path, template: str) -> Path:
    config = json.loads((demo_model / "tokenizer_config.json").read_text()) | {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    shutil.copy(demo_model / "tokenizer.json", folder)
    return folder


def served(folder: Path, said) -> list[int]:
    messages = [{"role": role, "content": content} for role, content in said]
    text = ChatTemplate.from_folder(folder).render(messages)
    return Tokenizer(folder).encode(text, add_special_tokens=False)


def write(folder: Path, *recordings: Prompt, max_tokens: int = 4096):
    return ChatTokenizer(Rendering(folder, (END, 2)), max_tokens).write(recordings)


@pytest.mark.parametrize("template", [None, LINES])
def test_prompts_are_those_of_the_gateway_and_answers_end_their_turn(demo_model, tmp_path, template):
    folder = demo_model if template is None else with_template(demo_model, tmp_path, template)
    (written,) = write(folder, conversation(TALK))
    (sequence,) = written.sequences
    (first, second), ids = sequence.produced, sequence.token_ids
    assert ids[: first[0]] == served(folder, TALK[:2])
    assert ids[: second[0]] == served(folder, TALK[:4])
    assert len(ids) == second[1]
    tokenizer = Tokenizer(folder)
    assert [tokenizer.decode(ids[start:end]).strip() for start, end in sequence.produced] == ["Ho \n\n1", "4."]
    assert [ids[start:end].count(END) for start, end in sequence.produced] == [1, 1]
    assert [ids[end - 1] for _, end in sequence.produced] == [END, END]


def test_what_the_template_writes_otherwise_later_on_is_another_sequence(demo_model, tmp_path):
    folder = with_template(demo_model, tmp_path, FORGETFUL)
    (written,) = write(folder, conversation(TALK[1:]))
    first, second = written.sequences
    think = Tokenizer(folder).encode("<think>", add_special_tokens=False)
    start = first.produced[0][0]
    assert first.token_ids[:start] == served(folder, TALK[1:2])
    assert first.token_ids[start : start + len(think)] == think
    assert second.token_ids[: second.produced[0][0]] == served(folder, TALK[1:4])
    assert len(second.produced) == 1


def test_a_template_without_special_tokens_before_the_answer_is_followed_or_refused(demo_model, tmp_path):
    plain = "{% for m in messages %}{{ m.role + ': ' + m.content }}{{ '<|end|>' if m.role != 'user' }}{% endfor %}"
    folder = with_template(demo_model, tmp_path, plain + "{% if add_generation_prompt %}assistant: {% endif %}")
    said = [*TALK[1:4], ("assistant", "the cat")]
    followed, cut, refused = (write(folder, conversation(part))[0] for part in (said[:2], said, said[2:]))
    start = followed.sequences[0].produced[0][0]
    assert followed.sequences[0].token_ids[:start] == served(folder, said[:1])
    assert (cut.sequences, cut.ended) == (followed.sequences, chat_tokenizer.JOINED)
    assert refused.reason == chat_tokenizer.JOINED


def test_answers_to_nobody_are_context(demo_model):
    said = [("assistant", "Hello!"), *TALK[1:3]]
    (written,) = write(demo_model, conversation(said))
    (span,) = written.sequences[0].produced
    assert written.sequences[0].token_ids[: span[0]] == served(demo_model, said[:2])


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([("user", "Hi"), ("assistant", "Ho<|end|>")], chat_tokenizer.SPECIAL),
        ([("text", "a <|user|>")], chat_tokenizer.SPECIAL),
        ([("user", "\ud800"), ("assistant", "Ho")], chat_tokenizer.NOT_UNICODE),
        ([("user", "Hi"), ("system", "Be brief."), ("assistant", "Ho")], chat_tokenizer.REFUSED),
    ],
)
def test_what_would_not_be_served_so_is_left_out(demo_model, said, reason):
    bad, good = write(demo_model, conversation(said), conversation(TALK))
    assert (bad.reason, bad.sequences) == (reason, [])
    assert good.sequences


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages | length }}{% if add_generation_prompt %}x{% endif %}", chat_tokenizer.ELSEWHERE),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", chat_tokenizer.ENDLESS),
    ],
)
def test_a_template_that_writes_answers_elsewhere_is_refused(demo_model, tmp_path, template, reason):
    (written,) = write(with_template(demo_model, tmp_path, template), conversation(TALK))
    assert written.reason == reason


def test_long_ones_are_cut_and_texts_go_on(demo_model):
    ids = Tokenizer(demo_model).encode("one two three four five six", add_special_tokens=True)
    text = conversation([("text", "one two three four five six")])
    (whole,) = write(demo_model, conversation(TALK))
    size = whole.sequences[0].produced[0][0] + 2
    cut, uncut = write(demo_model, conversation(TALK), text, max_tokens=size)
    assert cut.sequences[0].token_ids == whole.sequences[0].token_ids[:size]
    assert cut.sequences[0].produced == [(size - 2, size)]
    assert [each.token_ids for each in uncut.sequences] == [ids]
    (parts,) = write(demo_model, text, max_tokens=4)
    assert [part.token_ids[0] for part in parts.sequences] == [ids[0]] * len(parts.sequences)
    assert [token for part in parts.sequences for token in part.token_ids[1:]] == ids[1:]
    assert all(part.produced == [(1, len(part.token_ids))] for part in parts.sequences)


def test_without_a_token_that_ends_turns_there_is_no_scribe(demo_model):
    with pytest.raises(ValueError, match="is a special token"):
        ChatTokenizer(Rendering(demo_model, (100,)), 64)
