"""Sequences of conversations."""

from __future__ import annotations

from training.answers.sequences import Turn, extend


def turn(prompt, output):
    return Turn(prompt, output, "stop", 1)


def test_answers_whose_prompts_go_on_are_one_sequence():
    sequences = []
    extend(sequences, [1, 2], [3, 4], turn(2, 2), [{"role": "user", "content": "a"}])
    extend(sequences, [1, 2, 3, 4, 5, 6], [7], turn(6, 1), [{"role": "user", "content": "b"}])
    (whole,) = sequences
    assert whole.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert whole.produced == [(2, 4), (6, 7)]
    assert [each.prompt_tokens for each in whole.turns] == [2, 6]
    assert whole.messages == [{"role": "user", "content": "b"}]


def test_an_answer_that_reads_back_otherwise_begins_another():
    sequences = []
    extend(sequences, [1, 2], [3, 4], turn(2, 2), [])
    extend(sequences, [1, 2, 34, 5], [7], turn(4, 1), [])
    extend(sequences, [1, 2, 34, 5, 7, 8], [9], turn(6, 1), [])
    assert [each.token_ids for each in sequences] == [[1, 2, 3, 4], [1, 2, 34, 5, 7, 8, 9]]
    assert [each.produced for each in sequences] == [[(2, 4)], [(4, 5), (6, 7)]]


def test_a_shorter_prompt_begins_another():
    sequences = []
    extend(sequences, [1, 2], [3, 4], turn(2, 2), [])
    extend(sequences, [1, 2, 3], [5], turn(3, 1), [])
    assert len(sequences) == 2
