"""Near-duplicates on disk."""

from __future__ import annotations

import random
import sqlite3
from contextlib import ExitStack, closing

import numpy as np
import pytest

from training.prompts.duplicates import NearDuplicates, Signer

WORDS = [f"word{number}" for number in range(500)]
SIZE = 128


@pytest.fixture
def open_index():
    with ExitStack() as connections:

        def open_file(file, similarity=0.8):
            database = connections.enter_context(closing(sqlite3.connect(file)))
            return NearDuplicates(database, similarity, SIZE)

        yield open_file


@pytest.fixture(scope="module")
def signer():
    return Signer(SIZE, shingle=3)


def text(seed, length=120):
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def jaccard(first, second):
    def runs(words):
        return {tuple(words[start : start + 3]) for start in range(len(words) - 2)}

    a, b = runs(first.split()), runs(second.split())
    return len(a & b) / len(a | b)


def test_signatures_estimate_the_similarity_of_runs_of_words(signer):
    for changed in (0, 3, 10, 30):
        original = text(1).split()
        edited = original[:]
        for position in random.Random(changed).sample(range(len(edited)), changed):
            edited[position] = "other"
        a, b = (np.frombuffer(signer.sign(" ".join(words)), "<u4") for words in (original, edited))
        assert len(a) == SIZE
        assert float(np.mean(a == b)) == pytest.approx(jaccard(" ".join(original), " ".join(edited)), abs=0.15)


def test_case_and_punctuation_do_not_count_and_order_does(signer):
    assert signer.sign("One, two; THREE four.") == signer.sign("one two three four")
    assert signer.sign("one two three four") != signer.sign("four three two one")
    assert len(signer.sign("?!")) == 4 * SIZE


def test_a_changed_word_is_a_duplicate_and_another_text_is_none(open_index, signer):
    index = open_index(":memory:")
    for number in range(60):
        assert index.find(signer.sign(text(number))) is None
        index.add(f"text {number}", signer.sign(text(number)))
    for number in range(60):
        assert index.find(signer.sign(text(number) + " more")) == f"text {number}"
    assert index.find(signer.sign(text(1000))) is None


def test_the_most_similar_text_is_named_and_of_equals_the_first(open_index, signer):
    index = open_index(":memory:", similarity=0.5)
    signature = signer.sign(text(1))
    near = signer.sign(text(1) + " a little more here")
    index.add("near", near)
    index.add("equal", signature)
    index.add("equal again", signature)
    assert index.find(signature) == "equal"


def test_what_was_committed_is_found_again(tmp_path, open_index, signer):
    database = sqlite3.connect(tmp_path / "index.sqlite")
    index = NearDuplicates(database, 0.8, SIZE)
    index.add("kept", signer.sign(text(1)))
    database.commit()
    index.add("lost", signer.sign(text(2)))
    database.close()
    index = open_index(tmp_path / "index.sqlite")
    assert index.find(signer.sign(text(1))) == "kept"
    assert index.find(signer.sign(text(2))) is None
