"""A folder is named and fits what is served, or is refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from draft_service.proposers.base import ProposerOptions, Target
from draft_service.proposers.checkpoint_folder import (
    TargetFacts,
    check_states,
    check_tokenizer,
    folder_and_config,
    refusing,
    target_facts,
)
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from slipstream_kernels.models.checkpoint.model_config import CheckpointError


@dataclass(frozen=True)
class Limits:
    top_k: int = 4
    max_depth: int = 5


def options(argument: str, top_k: int | None = None) -> ProposerOptions:
    return ProposerOptions("guess", argument, 1, top_k=top_k)


def served(tokenizer: str = "abc", hidden_size: int = 32) -> Target:
    return Target(tokenizer_fingerprint=tokenizer, vocab_size=64, max_context=128, hidden_size=hidden_size)


def test_what_follows_the_folder_goes_before_the_operators_limits_and_these_before_the_defaults(tmp_path: Path) -> None:
    assert folder_and_config(options(f"{tmp_path}"), Limits()) == (tmp_path, Limits())
    assert folder_and_config(options(f"{tmp_path}", top_k=2), Limits()) == (tmp_path, Limits(top_k=2))
    chosen = folder_and_config(options(f"{tmp_path}:topk=3:num_steps=7", top_k=2), Limits())
    assert chosen == (tmp_path, Limits(3, 7))


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert folder_and_config(options(f"~/{tmp_path.name}:topk=3"), Limits()) == (tmp_path, Limits(3))


@pytest.mark.parametrize(
    ("argument", "told"),
    [("", "needs a folder: guess:DIR"), ("/nowhere", "no such folder"), ("org/name:topk=1", "hf download org/name")],
)
def test_no_folder_is_refused(argument: str, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as raised:
        folder_and_config(options(argument), Limits())
    assert raised.value.field == "proposers"


def test_a_bad_checkpoint_is_told_with_the_proposers_name() -> None:
    with pytest.raises(InvalidArgumentError, match="proposer guess: fc is missing"), refusing(options("")):
        raise CheckpointError("fc is missing")


def test_another_tokenizer_or_width_is_refused() -> None:
    check_tokenizer("", served())
    check_tokenizer("abc", served())
    check_states(32, served())
    with pytest.raises(FailedPreconditionError, match=r"its tokenizer \(xyz\) is not the target's \(abc\)"):
        check_tokenizer("xyz", served())
    with pytest.raises(FailedPreconditionError, match="it reads states of 48 numbers, the target's have 32"):
        check_states(48, served())


def test_without_a_target_at_hand_nothing_is_known_of_it(tiny_model: Path) -> None:
    assert target_facts(None) == TargetFacts()
    known = target_facts(tiny_model)
    assert known.tokenizer
    assert known.eos_token_ids
