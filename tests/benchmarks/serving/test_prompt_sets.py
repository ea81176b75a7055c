"""Prompts of every form of file, and stretched ones."""

import json

import pytest

from benchmarks.lib.prompts import PromptFileError
from benchmarks.serving.prompt_sets import PromptSet, bodies, read_prompts, stretched


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


QUESTIONS = [{"question_id": n, "category": "qa", "turns": [f"What is {n} and {n}?"]} for n in range(9)]


def test_conversations_get_the_chat_template(tmp_path, tiny_model):
    path = write(tmp_path / "questions.jsonl", QUESTIONS)
    prompts = read_prompts(path, 4, tiny_model, seed=1)
    assert len(prompts) == 4
    assert all("<|user|>What is" in text and text.endswith("<|assistant|>") for text in prompts.texts)
    assert prompts == read_prompts(path, 4, tiny_model, seed=1)
    assert prompts.contents("ids") == list(prompts.token_ids)
    assert prompts.contents("text") == list(prompts.texts)


def test_without_a_tokenizer_they_are_text(tmp_path):
    prompts = read_prompts(write(tmp_path / "questions.jsonl", QUESTIONS), None, None, seed=1)
    assert sorted(prompts.texts) == [f"What is {n} and {n}?" for n in range(9)]
    assert prompts.contents("ids") == list(prompts.texts)
    assert prompts.mean_tokens is None
    with pytest.raises(PromptFileError, match="tokenizer"):
        stretched(prompts, 64, None, 0)


def test_ids_and_bare_texts_are_taken_as_they_are(tmp_path, tiny_model):
    ids = write(tmp_path / "ids.jsonl", [{"token_ids": [n, 7]} for n in range(5)])
    assert sorted(read_prompts(ids, 3, None, 0).contents("text")) < [(n, 7) for n in range(5)]
    texts = read_prompts(write(tmp_path / "texts.jsonl", [{"prompt": "Bread needs flour"}]), 3, tiny_model, 0)
    assert texts.texts == ("Bread needs flour",)
    assert len(texts.token_ids[0]) > 1


def test_a_file_without_prompts(tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(PromptFileError, match="no prompts"):
        read_prompts(tmp_path / "none.jsonl", 3, None, 0)


def test_stretched_prompts_have_the_length_and_end_as_before(tmp_path, tiny_model):
    prompts = read_prompts(write(tmp_path / "questions.jsonl", QUESTIONS), None, tiny_model, seed=1)
    long = stretched(prompts, 300, tiny_model, 0)
    assert {len(ids) for ids in long.token_ids} == {300}
    assert all(ids[-len(own) :] == own for ids, own in zip(long.token_ids, prompts.token_ids, strict=True))
    assert len({ids[:32] for ids in long.token_ids}) > 1
    assert all(text.endswith(own) for text, own in zip(long.texts, prompts.texts, strict=True))
    assert long == stretched(prompts, 300, tiny_model, 0)
    short = stretched(prompts, 5, tiny_model, 0)
    assert [ids[-5:] for ids in prompts.token_ids] == list(short.token_ids)
    assert stretched(prompts, 0, tiny_model, 0) is prompts


def test_bodies():
    fields = {"speculation": {"enabled": False}, "more": {"seed": 3}}
    written = [json.loads(body) for body in bodies(["a", (1, 2)], "m", 9, token_ids=True, **fields)]
    assert [body["prompt"] for body in written] == ["a", [1, 2]]
    assert all(body["return_token_ids"] and body["ignore_eos"] and body["stream"] for body in written)
    assert written[0]["speculation"] == {"enabled": False}
    assert (written[0]["max_tokens"], written[0]["temperature"], written[0]["seed"]) == (9, 0.0, 3)
    (bare,) = (json.loads(body) for body in bodies(["a"], "m", 9, token_ids=False))
    assert not {"return_token_ids", "speculation"} & set(bare)


def test_sets_know_their_mean():
    assert PromptSet((), ((1, 2), (3,))).mean_tokens == 1.5
