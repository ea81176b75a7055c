from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from draft_service.proposers.base import ProposerOptions
from draft_service.proposers.options import configured
from slipstream.rpc.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Config:
    max_nodes: int = 9
    max_depth: int = 8
    share: float = 0.5
    mode: str = "tree"

    def __post_init__(self) -> None:
        if self.max_depth < 1:
            raise ValueError("max_depth must be 1 or more")


def read(argument: str, **limits: int) -> Config:
    return configured(Config(), ProposerOptions("name", argument, **limits), prefix="long_")


@pytest.mark.parametrize(
    ("argument", "config"),
    [
        ("", Config()),
        ("max_nodes=5", Config(max_nodes=5)),
        ("long_share=0.25:long_mode=path:max_depth=3", Config(max_depth=3, share=0.25, mode="path")),
        ("num_speculative_tokens=4", Config(max_nodes=5, max_depth=4)),
        ("num_draft_tokens=16:num_steps=5", Config(max_nodes=16, max_depth=5)),
        ("speculative_num_draft_tokens=16:speculative_num_steps=5", Config(max_nodes=16, max_depth=5)),
    ],
)
def test_keys_are_fields_and_names_that_users_know(argument, config) -> None:
    assert read(argument) == config


def test_the_operators_limits_stand_where_the_argument_says_nothing() -> None:
    assert read("share=1", max_nodes=4, max_depth=3) == Config(4, 3, 1.0)
    assert read("max_nodes=6", max_nodes=4, max_depth=3) == Config(6, 3)


@pytest.mark.parametrize(
    "argument",
    ["x=1", "max_nodes", "max_nodes=", "max_nodes=1.5", "share=half", "mode=a:mode=b", "max_depth=0",
     "num_speculative_tokens=4:max_nodes=3", "num_steps=x", "speculative_algorithm=EAGLE"],
)  # fmt: skip
def test_anything_else_is_refused(argument) -> None:
    with pytest.raises(InvalidArgumentError, match="proposer name"):
        read(argument)


def test_aliases_need_their_fields() -> None:
    @dataclass(frozen=True)
    class Small:
        share: float = 1.0

    with pytest.raises(InvalidArgumentError):
        configured(Small(), ProposerOptions("name", "num_steps=3"))


def test_the_operators_token_map_is_for_those_that_have_one_and_name_none() -> None:
    @dataclass(frozen=True)
    class Mapped:
        token_map: str = ""

    def token_map(argument: str) -> str:
        return configured(Mapped(), ProposerOptions("name", argument, token_map="a.pt")).token_map

    assert (token_map(""), token_map("token_map=b.pt")) == ("a.pt", "b.pt")
    assert configured(Config(), ProposerOptions("name", token_map="a.pt")) == Config()


def test_home_folders_in_paths_are_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Lent:
        target: str = ""
        token_map: str = ""
        mode: str = ""

    monkeypatch.setenv("HOME", str(tmp_path))
    options = ProposerOptions("name", "target=~/t:mode=~", token_map="~/a.pt")
    assert configured(Lent(), options) == Lent(f"{tmp_path}/t", f"{tmp_path}/a.pt", "~")
    assert configured(Lent(), ProposerOptions("name")) == Lent()
    with pytest.raises(InvalidArgumentError, match="proposer name: ~nobody-of-this-name/t"):
        configured(Lent(), ProposerOptions("name", "target=~nobody-of-this-name/t"))
