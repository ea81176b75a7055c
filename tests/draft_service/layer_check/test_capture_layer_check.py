"""Proposers that read other boundaries than they were made for are told apart from those that do not."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from itertools import count, takewhile
from pathlib import Path

import numpy as np
import pytest
import torch

from draft_service.layer_check import capture_layer_check
from draft_service.layer_check.capture_layer_check import FIRST_SESSION, better_shift, check_boundaries, first_guesses
from draft_service.layer_check.reference_states import LENGTH, TEXTS, read_texts
from draft_service.proposers.base import DraftRequest, Opening, Proposer, ProposerOptions, Target
from draft_service.proposers.eagle import eagle3
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.token_tree import TokenTree
from support.eagle_heads import EAGLE3, Shape, write_head

GUESSES = len(TEXTS) * (LENGTH - 1)


DEMO = Path(__file__).parents[3] / "demo_models"


class Reader(Proposer):
    """Guesses what the target does wherever text and states are those that `made_for` has, and else nothing.

    `known` holds the target's likeliest token by text so far and bits of the newest states.
    """

    name, max_nodes, max_depth = "reader", 4, 3

    def __init__(self, text, made_for: Sequence[int], reads: Sequence[int], folder, every: int = 1) -> None:
        self.feature_boundaries = tuple(reads)
        self.target_folder = folder
        self.sessions: dict[int, list[int]] = {}
        self.states: dict[int, bytes] = {}
        self.closed: list[int] = []
        self.known = {}
        for end in range(2, text.tokens.shape[1] + 1):
            for line in range(len(text.tokens)):
                key = tuple(text.tokens[line, :end].tolist()), text.columns(end - 2, made_for)[line].tobytes()
                self.known[key] = int(text.likeliest[line, end - 1]) if end % every == 0 else -1

    def bind(self, target: Target) -> None:
        if target.hidden_size == 0:
            raise FailedPreconditionError("no")

    def open(self, session: int, opening: Opening) -> None:
        self.sessions[session] = list(opening.token_ids)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self.sessions[session].extend(token_ids)

    def take_features(self, session: int, first_position: int, features) -> None:
        assert first_position == len(self.sessions[session]) - 2
        assert len(features) == 1
        self.states[session] = features.view(torch.int16).numpy().tobytes()

    def close(self, session: int) -> None:
        del self.sessions[session]
        self.closed.append(session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        keys = [(tuple(self.sessions[each.session]), self.states[each.session]) for each in requests]
        return [TokenTree.chain([self.known[key]]) if self.known.get(key, -1) >= 0 else None for key in keys]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(capture_layer_check, "SECONDS", 600.0)


@pytest.fixture(scope="module")
def text(tiny_model):
    return read_texts(tiny_model, 1 << 30, 600.0)


@pytest.mark.parametrize(
    ("reads", "made_for", "shares"),
    [
        ((1, 2), (1, 2), {0: 1, -1: 0, 1: 0}),
        ((1, 2), (2, 3), {0: 0, -1: 0, 1: 1}),
        ((1, 2), (0, 1), {0: 0, -1: 1, 1: 0}),
        ((2, 1), (1, 2), {0: 0, -1: 0, 1: 0}),
        ((3,), (2,), {0: 0, -1: 1}),
        ((0,), (1,), {0: 0, 1: 1}),
    ],
)
def test_the_right_shift_guesses_right(text, tiny_model, reads, made_for, shares):
    reader = Reader(text, made_for, reads, tiny_model)
    right = first_guesses(reader, text, count(FIRST_SESSION), lambda: True)
    assert {shift: int(each.sum()) for shift, each in right.items()} == {s: n * GUESSES for s, n in shares.items()}
    assert better_shift(right) == next((shift for shift, share in shares.items() if share), 0)
    assert not reader.sessions
    assert len(set(reader.closed)) == len(reader.closed) == len(TEXTS) * len(shares)


def test_it_ends_when_time_does(text, tiny_model):
    left = iter([True, True, False])
    right = first_guesses(Reader(text, (1,), (1,), tiny_model), text, count(1), lambda: next(left))
    assert {len(each) for each in right.values()} == {3 * len(TEXTS)}


@pytest.mark.parametrize(
    ("gained", "lost", "total", "clear"),
    [
        (30, 10, 100, True),
        (8, 0, 100, False),
        (9, 0, 100, True),
        (20, 11, 100, False),
        (49, 0, 1000, False),
        (50, 0, 1000, True),
    ],
)
def test_chance_is_no_reason_to_warn(gained, lost, total, clear):
    own, other = np.zeros(total, bool), np.zeros(total, bool)
    other[:gained] = own[gained : gained + lost] = True
    own[-5:] = other[-5:] = True
    assert better_shift({0: own, -1: np.zeros(total, bool), 1: other}) == (1 if clear else 0)


def levels(caplog, *proposers, max_bytes=1 << 30, target=None) -> list[tuple[int, str]]:
    with caplog.at_level(logging.INFO, "draft_service.layer_check.capture_layer_check"):
        check_boundaries(proposers, max_bytes, target)
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_a_clearly_better_shift_is_warned_of_and_named(text, tiny_model, caplog):
    ((level, message),) = levels(caplog, Reader(text, (2, 3), (1, 2), tiny_model))
    assert level == logging.WARNING
    assert "reader reads boundaries 1-2, but seems made for 2-3: 0 of 378" in message
    assert "378 shifted by +1" in message
    assert message.endswith("Try boundaries=2-3")


def test_a_proposer_that_reads_what_it_was_made_for_is_let_be(text, tiny_model, caplog):
    ((level, message),) = levels(caplog, Reader(text, (1, 2), (1, 2), tiny_model, every=2))
    assert level == logging.INFO
    assert message.startswith("boundaries 1-2 of reader: no shift is clearly better, 192 of 378")


def test_a_gpu_is_not_kept_waiting_for_long(text, tiny_model, caplog, monkeypatch):
    monkeypatch.setattr(capture_layer_check, "GPU_SECONDS", 0.0)
    reader = Reader(text, (1, 2), (1, 2), tiny_model)
    reader.state_device = "cuda:0"
    ((_, message),) = levels(caplog, reader)
    assert "boundaries of reader are not checked: reading" in message and message.endswith("more than 0")


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("", "boundaries 2-5-8 of eagle3: no shift is clearly better"),
        (":boundaries=3-6-9", "eagle3 reads boundaries 3-6-9, but seems made for 2-5-8"),
    ],
)
def test_a_trained_head_whose_boundaries_are_one_off_is_warned_of(named, said, caplog):
    options = ProposerOptions("eagle3", f"{DEMO}/slipstream-demo-eagle3:target={DEMO}/slipstream-demo{named}")
    ((level, message),) = levels(caplog, eagle3.create(options))
    assert level == (logging.WARNING if named else logging.INFO)
    assert message.startswith(said)


def test_guesses_that_are_never_right_tell_nothing(text, tiny_model, caplog):
    ((level, message),) = levels(caplog, Reader(text, (2, 3), (1, 2), tiny_model, every=31))
    assert level == logging.INFO
    assert "nothing can be told" in message


def test_a_target_that_is_not_there_and_a_proposer_that_fails_are_passed_over(text, tiny_model, tmp_path, caplog):
    ((level, message),) = levels(caplog, Reader(text, (1,), (1,), tmp_path))
    assert level == logging.INFO
    assert "reader are not checked" in message
    caplog.clear()
    ((level, message),) = levels(caplog, Reader(text, (1,), (1,), tiny_model), max_bytes=1000)
    assert level == logging.INFO
    assert "MiB of weights, at most 0 are read for this" in message
    caplog.clear()
    failing = Reader(text, (1,), (1,), tiny_model)
    failing.name, failing.propose = "failing", None
    first, second = levels(caplog, failing, Reader(text, (1,), (1,), tiny_model))
    assert first == (logging.ERROR, "boundaries of failing could not be checked")
    assert second[1].startswith("boundaries 1 of reader: no shift")
    caplog.clear()
    assert levels(caplog, Reader(text, (1,), (1,), None)) == []


def test_heads_that_name_no_target_read_the_one_that_is_served(text, tiny_model, tmp_path, caplog):
    """Others may not wish to be tried; and one that reads no states has the target read no text."""
    reader, other = Reader(text, (2, 3), (1, 2), None), Reader(text, (2, 3), (1, 2), None)
    reader.trained_on_states = True
    ((level, message),) = levels(caplog, reader, other, target=tiny_model)
    assert not other.closed
    assert level == logging.WARNING
    assert "seems made for 2-3" in message
    caplog.clear()
    blind = Reader(text, (), (), None)
    blind.trained_on_states = True
    assert levels(caplog, blind, max_bytes=1000, target=tiny_model) == []
    ((_, message),) = levels(caplog, Reader(text, (1,), (1,), tmp_path), target=tiny_model)
    assert "reader are not checked" in message


def test_eagle_heads_join(tiny_model, tmp_path, caplog):
    shape = Shape(hidden=128, vocab=512)
    write_head(tmp_path, EAGLE3["midlayer, offsets and mask"], shape, seed=1)
    options = ProposerOptions("heads", f"{tmp_path}:target={tiny_model}:boundaries=0-1-2")
    proposer = eagle3.create(options)
    ((level, message),) = levels(caplog, proposer)
    assert level == logging.INFO
    assert "boundaries of heads: nothing can be told" in message
    assert not proposer._sessions


def test_the_service_checks_before_it_serves(tiny_model, tmp_path):
    write_head(tmp_path, EAGLE3["midlayer, offsets and mask"], Shape(hidden=128, vocab=512), seed=1)
    command = [sys.executable, "-m", "draft_service", "--port", "0", "--verify", "127.0.0.1:1", "--boundary-check"]
    command += ["--proposers", f"eagle3:{tmp_path}:target={tiny_model}:boundaries=0-1-2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        before = list(takewhile(lambda line: "ready" not in line, process.stderr))
        process.kill()
    assert sum("boundaries of eagle3" in line for line in before) == 1
