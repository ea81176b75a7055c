"""Pieces of prompts, in an order that may be cut off."""

from __future__ import annotations

import json

import pytest

from training.recipes.mix import PLAN, Round, Share, main, mixed

ROUNDS = (Round(0.0, "Be brief."), Round(0.7))


def records(count, category="chat"):
    return [
        {"messages": [{"role": "user", "content": f"{category} {number}"}], "category": category}
        for number in range(count)
    ]


def said(piece):
    return [record["messages"][-1]["content"] for record in piece.records]


def test_two_pieces_are_new_and_the_third_asks_again():
    pieces = mixed(records(40), 10, rounds=ROUNDS)
    assert [piece.seed for piece in pieces] == [0, 0, 1, 0, 0, 2, 1, 2, 1, 2, 1, 2]
    assert [piece.temperature for piece in pieces[:6]] == [0.0, 0.0, 0.0, 0.0, 0.0, 0.7]
    for seed in (0, 1, 2):
        every = [text for piece in pieces if piece.seed == seed for text in said(piece)]
        assert sorted(every) == sorted(f"chat {number}" for number in range(40))
    assert said(pieces[0]) != said(pieces[2])
    assert mixed(records(40), 10, rounds=ROUNDS) == pieces


def test_only_some_are_asked_under_a_system_message_and_none_under_two():
    own = {"messages": [{"role": "system", "content": "Mine."}, {"role": "user", "content": "Hi"}]}
    pieces = mixed([*records(3), own], 10, rounds=ROUNDS)
    systems = {
        piece.seed: sorted(
            {turn["content"] for each in piece.records for turn in each["messages"] if turn["role"] == "system"}
        )
        for piece in pieces
    }
    assert systems == {0: ["Mine."], 1: ["Be brief.", "Mine."], 2: ["Mine."]}


def test_parts_of_categories_are_taken():
    shares = [Share("code", 0.3, 0.0), Share("gsm8k", 1.0, 0.35)]
    everything = [*records(400, "code_edit"), *records(400, "gsm8k"), *records(50)]
    pieces = mixed(everything, 100, shares, ROUNDS)
    count = {(name, seed): 0 for name in ("code_edit", "gsm8k", "chat") for seed in (0, 1, 2)}
    for piece in pieces:
        for record in piece.records:
            count[record["category"], piece.seed] += 1
    assert count["code_edit", 0] == pytest.approx(120, abs=30)
    assert count["code_edit", 1] == count["code_edit", 2] == 0
    assert count["gsm8k", 0] == 400
    assert count["gsm8k", 1] == count["gsm8k", 2] == pytest.approx(140, abs=30)
    assert [count["chat", seed] for seed in (0, 1, 2)] == [50, 50, 50]


def test_the_command_writes_pieces_and_their_plan(tmp_path, capsys):
    passage = "Tom said. " * 60
    lines = [*records(24), {"messages": [{"role": "user", "content": f"Who?\n\n{passage}"}], "origin": "gsm8k.jsonl:1"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([str(tmp_path / "train.jsonl"), str(tmp_path / "out"), "--size", "10", "--long", "5", "--share", "gsm8k=0:0"])
    plan = [line.split() for line in (tmp_path / "out" / PLAN).read_text().splitlines()]
    assert [seed for _, _, seed in plan[:4]] == ["0", "0", "1", "0"]
    first = [
        json.loads(line)
        for name, _, seed in plan
        if seed == "0"
        for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()
    ]
    assert sorted(record["category"] for record in first) == ["chat"] * 24 + ["long"] * 5
    assert "30 prompts in" in capsys.readouterr().out


def test_separators_of_lines_within_a_prompt_end_no_line(tmp_path):
    record = {"messages": [{"role": "user", "content": "a\u2028b\x85c"}], "category": "chat"}
    (tmp_path / "train.jsonl").write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    main([str(tmp_path / "train.jsonl"), str(tmp_path / "out"), "--size", "10"])
    name = (tmp_path / "out" / PLAN).read_text().split()[0]
    assert json.loads((tmp_path / "out" / f"{name}.jsonl").read_text(encoding="utf-8")) == record


@pytest.mark.parametrize("text", ["gsm8k", "gsm8k=1", "=1:1", "gsm8k=2:1", "gsm8k=a:b"])
def test_a_share_that_is_none_is_refused(tmp_path, text, capsys):
    (tmp_path / "train.jsonl").write_text(json.dumps(records(1)[0]) + "\n")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "train.jsonl"), str(tmp_path / "out"), "--share", text])
    assert repr(text) in capsys.readouterr().err
