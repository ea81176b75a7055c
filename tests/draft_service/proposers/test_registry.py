from __future__ import annotations

from pathlib import Path

import pytest

from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions
from draft_service.proposers.ngram.ngram import NgramProposer, create
from draft_service.proposers.registry import ProposerSpec, find_factory, load_proposers
from slipstream.rpc.errors import InvalidArgumentError
from slipstream_kernels.token_tree import TokenTree


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("ngram", ProposerSpec("ngram", "", "")),
        ("draft-model:/models/a:b", ProposerSpec("draft-model", "", "/models/a:b")),
        ("draft-model:/models/x=y", ProposerSpec("draft-model", "", "/models/x=y")),
        ("mine=pkg.mod:make", ProposerSpec("mine", "pkg.mod:make", "")),
        ("mine=pkg.mod:make:/dir:1", ProposerSpec("mine", "pkg.mod:make", "/dir:1")),
    ],
)
def test_specs(text, spec) -> None:
    assert ProposerSpec.parse(text) == spec


@pytest.mark.parametrize("text", ["", ":x", "a b", "mine=pkg", "mine=:make", "mine=pkg:", "x" * 65])
def test_malformed_specs_are_refused(text) -> None:
    with pytest.raises(InvalidArgumentError):
        ProposerSpec.parse(text)


def test_a_factory_of_a_third_party_is_found_by_path() -> None:
    spec = ProposerSpec.parse("mine=draft_service.proposers.ngram:create:1-3")
    assert find_factory(spec) is create
    (proposer,) = load_proposers([spec], threads=1, max_nodes=5)
    assert isinstance(proposer, NgramProposer)
    assert (proposer.name, proposer.config.prompt_lookup_max, proposer.max_nodes) == ("mine", 3, 5)


def test_a_factory_is_told_where_to_compute_and_which_tokens_to_score(monkeypatch) -> None:
    told: list[ProposerOptions] = []
    public = "draft_service.proposers.ngram.create"
    monkeypatch.setattr(public, lambda options: told.append(options) or create(options))
    load_proposers([ProposerSpec.parse("ngram")], threads=1, device="cuda:1", token_map="a.pt")
    assert told == [ProposerOptions("ngram", device="cuda:1", token_map="a.pt")]


def test_the_example_of_the_documentation_works(tmp_path, monkeypatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "proposers.md").read_text()
    (tmp_path / "my_echo.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    (echo,) = load_proposers([ProposerSpec.parse("echo=my_echo:Echo")], threads=1)
    echo.open(1, Opening([4, 5, 6], 3))
    echo.commit(1, [7])
    assert echo.propose([DraftRequest(1, 64, 63), DraftRequest(1, 2, 1)]) == [
        TokenTree.chain((6, 7)),
        TokenTree.chain((6,)),
    ]
    echo.close(1)


def test_entry_points_are_found_by_name(tmp_path, monkeypatch) -> None:
    package = tmp_path / "third_party-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[slipstream.proposers]\nlookup = draft_service.proposers.ngram:create\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_factory(ProposerSpec.parse("lookup")) is create


@pytest.mark.parametrize("text", ["nobody", "x=no_such_module:make", "x=draft_service.proposers.ngram:nothing"])
def test_unknown_proposers_are_refused(text) -> None:
    with pytest.raises(InvalidArgumentError):
        find_factory(ProposerSpec.parse(text))


def test_names_must_differ() -> None:
    with pytest.raises(InvalidArgumentError):
        load_proposers([ProposerSpec.parse("ngram")] * 2, threads=1)
