from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.services.models import (
    ModelNotFoundError,
    configured_draft,
    resolve_defaults,
    resolve_draft,
    resolve_model,
    resolve_template,
)
from slipstream.speculation.reading import read


def test_a_folder_without_a_model_is_refused_with_a_hint(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"no config\.json in .*--model"):
        resolve_model(tmp_path)


HUB = r"no such folder: org/name; .*`hf download org/name --local-dir name`"


@pytest.mark.parametrize(
    ("resolve", "flag"),
    [
        (lambda: resolve_model(Path("org/name")), "--model"),
        (lambda: resolve_draft(("draft-model:org/name:topk=1",), demo=False), "--draft draft-model"),
        (lambda: resolve_draft(("inproc:eagle3:org/name",), demo=False), "--draft eagle3"),
        (
            lambda: configured_draft(read({"method": "eagle3", "model": "org/name"}), Path()),
            "speculative_config: model",
        ),
        (lambda: read({"model": "org/name"}), "model"),
    ],
)
def test_a_hubs_name_is_no_folder(resolve, flag):
    with pytest.raises((ModelNotFoundError, ValueError), match=f"{flag}: {HUB}"):
        resolve()


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_clone_without_its_large_files_is_refused(tiny_model, tmp_path, file):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1f\nsize 7\n")
    resolvers = {
        "--model": lambda: resolve_model(folder),
        "--draft draft-model": lambda: resolve_draft((f"draft-model:{folder}",), demo=False),
        "--draft medusa": lambda: resolve_draft((f"medusa:{folder}",), demo=False),
    }
    for flag, resolve in resolvers.items():
        with pytest.raises(ModelNotFoundError, match=rf"{flag}: {folder}/{file}: a git-lfs pointer .*git lfs pull"):
            resolve()


def test_files_that_are_named_must_be_there(tiny_model):
    with pytest.raises(ModelNotFoundError, match="--chat-template: no such file: /nowhere"):
        resolve_template(Path("/nowhere"))
    with pytest.raises(ModelNotFoundError, match="--generation-config: '/nowhere' is neither auto nor none"):
        resolve_defaults("/nowhere", tiny_model)
    assert resolve_template(None) is None and resolve_defaults("none", tiny_model) == "none"


def test_a_given_model_gets_ngrams_and_no_foreign_draft_model():
    assert resolve_draft((), demo=False) == ("ngram",)
    with pytest.raises(ValueError, match="draft-model:DIR"):
        resolve_draft(("draft-model",), demo=False)


def test_none_turns_speculation_off_and_stands_alone():
    assert resolve_draft(("none",), demo=True) == ()
    with pytest.raises(ValueError, match="excludes"):
        resolve_draft(("none", "ngram"), demo=True)


def test_names_must_differ(tiny_draft_model):
    with pytest.raises(ValueError, match="twice"):
        resolve_draft(("ngram", "ngram"), demo=False)
    specs = (f"draft-model:{tiny_draft_model}", "ngram")
    assert resolve_draft(specs, demo=False) == specs


def test_parameters_may_follow_the_folder(tiny_draft_model):
    specs = (f"draft-model:{tiny_draft_model}:num_steps=4:topk=1",)
    assert resolve_draft(specs, demo=False) == specs


def test_proposers_of_the_verify_process_have_a_name_and_their_folder(tiny_draft_model, demo_draft_model):
    specs = (f"inproc:draft-model:{tiny_draft_model}", "inproc:ngram")
    assert resolve_draft(specs, demo=False) == specs
    assert resolve_draft(("inproc:draft-model",), demo=True) == (f"inproc:draft-model:{demo_draft_model}",)
    for nothing in ("inproc:", "inproc:none", "inproc:inproc:ngram"):
        with pytest.raises(ValueError, match=f"--draft {nothing} names no proposer"):
            resolve_draft((nothing,), demo=False)
    with pytest.raises(ValueError, match="twice"):
        resolve_draft(("inproc:ngram", "inproc:ngram:2-4"), demo=False)


def test_one_name_may_be_hosted_in_both_places(demo_model, demo_head, tiny_draft_model):
    specs = resolve_draft(("inproc:eagle3", f"eagle3:{tiny_draft_model}"), demo=True, target=demo_model)
    assert specs == (f"inproc:eagle3:{demo_head}:target={demo_model}", f"eagle3:{tiny_draft_model}:target={demo_model}")


def test_third_party_proposers_pass_as_they_are():
    assert resolve_draft(("mine=package.module:factory:x",), demo=False) == ("mine=package.module:factory:x",)
    assert resolve_draft(("theirs:/some/folder",), demo=False) == ("theirs:/some/folder",)


def test_arguments_that_are_no_folder_pass_as_they_are():
    specs = ("ngram:2-4", "inproc:hybrid:suffix+ngram:max_nodes=9")
    assert resolve_draft(specs, demo=False) == specs


def test_heads_are_lent_the_model_that_is_served(tiny_model, tiny_draft_model, monkeypatch):
    monkeypatch.chdir(tiny_draft_model.parent)
    specs = (f"eagle3:{tiny_draft_model.name}:topk=1", f"inproc:medusa:{tiny_draft_model}", "mtp", "ngram")
    assert resolve_draft(specs, demo=False, target=tiny_model) == (
        f"eagle3:{tiny_draft_model}:topk=1:target={tiny_model}",
        f"inproc:medusa:{tiny_draft_model}:target={tiny_model}",
        f"mtp:{tiny_model}",
        "ngram",
    )
    own = f"eagle:{tiny_draft_model}:target=elsewhere"
    assert resolve_draft((own,), demo=False, target=tiny_model) == (own,)
    assert resolve_draft((f"eagle:{tiny_draft_model}",), demo=False) == (f"eagle:{tiny_draft_model}",)
    with pytest.raises(ModelNotFoundError, match=r"--draft eagle3: no such folder: .*nowhere"):
        resolve_draft(("eagle3:nowhere",), demo=False, target=tiny_model)
    for missing in ("eagle3", "eagle3:topk=1", "mtp"):
        with pytest.raises(ValueError, match="needs a folder"):
            resolve_draft((missing,), demo=False)


def test_the_demo_model_brings_its_own_draft_model(demo_model, demo_draft_model):
    assert resolve_model(None) == demo_model
    assert resolve_draft((), demo=True) == (f"draft-model:{demo_draft_model}", "ngram")
    assert resolve_draft(("draft-model",), demo=True) == (f"draft-model:{demo_draft_model}",)


def test_the_demo_model_brings_its_own_head(demo_model, demo_head):
    specs = resolve_draft(("eagle3", "inproc:ngram"), demo=True, target=demo_model)
    assert specs == (f"eagle3:{demo_head}:target={demo_model}", "inproc:ngram")
    with pytest.raises(ValueError, match="eagle3 needs a folder"):
        resolve_draft(("eagle3",), demo=False, target=demo_model)


def test_a_configuration_becomes_proposers_of_the_served_model(tiny_model, tiny_draft_model, monkeypatch):
    monkeypatch.chdir(tiny_draft_model.parent)
    configs = read(
        [
            {"method": "draft_model", "model": tiny_draft_model.name, "num_speculative_tokens": 3},
            {"method": "eagle3", "model": str(tiny_draft_model)},
            {"method": "ngram", "inproc": True},
            {"method": "suffix", "inproc": False},
            {"method": "mine=package.module:create", "model": "anything"},
        ]
    )
    assert configured_draft(configs, tiny_model) == (
        f"draft-model:{tiny_draft_model}:max_depth=3:max_nodes=4",
        f"eagle3:{tiny_draft_model}:target={tiny_model}",
        "inproc:ngram",
        "suffix",
        "mine=package.module:create:anything",
    )
    with pytest.raises(ModelNotFoundError, match=r"model: no such folder: .*nowhere"):
        configured_draft(read({"method": "draft_model", "model": "nowhere"}), tiny_model)
