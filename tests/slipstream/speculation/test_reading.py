"""Configurations of speculation, in several engines' names."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from draft_service.proposers.base import ProposerOptions
from draft_service.proposers.options import configured
from slipstream.speculation.config import PARAMETERS, SpeculativeConfig
from slipstream.speculation.reading import METHODS, NAMES, json_text, parse, read


def spec(config) -> str:
    (only,) = read(config)
    return only.spec


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"method": "ngram"}, "ngram"),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, "prompt_lookup_min": 2},
            "ngram:prompt_lookup_max=5:prompt_lookup_min=2:max_depth=4:max_nodes=5",
        ),
        (
            {"method": "suffix", "suffix_decoding_max_tree_depth": 24, "suffix_decoding_max_spec_factor": 2},
            "suffix:max_tree_depth=24:max_spec_factor=2.0",
        ),
        (
            {"method": "suffix", "suffix_decoding_max_cached_requests": 0, "suffix_decoding_min_token_prob": 0.5},
            "suffix:min_token_prob=0.5:max_cached_requests=0",
        ),
        (
            {"method": "eagle3", "model": "/head", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1},
            "eagle3:/head:max_depth=5:max_nodes=6",
        ),
        (
            {"method": "eagle3", "model": "/head", "num_steps": 5, "max_nodes": 24, "boundaries": [2, 4, 5]},
            "eagle3:/head:max_depth=5:max_nodes=24:boundaries=2-4-5",
        ),
        (
            {
                "speculative_algorithm": "EAGLE",
                "speculative_draft_model_path": "/head",
                "speculative_num_steps": 5,
                "speculative_eagle_topk": 8,
                "speculative_num_draft_tokens": 64,
                "speculative_token_map": "/freq.pt",
            },
            "eagle:/head:top_k=8:token_map=/freq.pt:max_depth=5:max_nodes=64",
        ),
        (
            {"method": "draft_model", "model": "/small", "num_steps": 3, "topk": 1},
            "draft-model:/small:top_k=1:max_depth=3",
        ),
        ({"speculative_algorithm": "NGRAM", "num_draft_tokens": 12}, "ngram:max_nodes=12"),
        ({"method": "hybrid", "members": ["suffix", "ngram"], "max_nodes": 16}, "hybrid:suffix+ngram:max_nodes=16"),
        ({"method": "ngram", "model": None, "max_depth": None, "inproc": True}, "ngram"),
        ({"method": "mine=package.module:create", "model": "x"}, "mine=package.module:create:x"),
    ],
)  # fmt: skip
def test_the_names_of_each_engine_mean_the_same(config, expected):
    assert spec(config) == expected


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "needs a method, or a model"),
        ({"metod": "ngram"}, "unknown key 'metod'"),
        ({"method": "nrgam"}, "method: must be one of .*ngram.*'nrgam'"),
        ({"speculative_algorithm": 3}, "speculative_algorithm: must be one of"),
        ({"method": "ngram", "speculative_algorithm": "NGRAM"}, "method and speculative_algorithm say the same"),
        ({"method": "ngram", "num_speculative_tokens": 64}, "num_speculative_tokens: .*63, got 64"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens: .*1, got 0"),
        ({"method": "ngram", "num_speculative_tokens": "4"}, "num_speculative_tokens: .*integer, got '4'"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens: .*integer, got True"),
        ({"method": "ngram", "max_depth": 2.0}, "max_depth: .*integer"),
        ({"method": "ngram", "num_steps": 2, "max_depth": 2}, "num_steps and max_depth say the same"),
        ({"method": "ngram", "num_steps": 2, "num_speculative_tokens": 2}, "num_steps and num_speculative_tokens say"),
        ({"method": "ngram", "topk": 2}, "topk is no parameter of ngram"),
        ({"method": "ngram", "model": "/x"}, "model is no parameter of ngram"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4}, "prompt_lookup_min: .*at most.*4, got 5"),
        ({"method": "eagle3"}, "eagle3 needs a model"),
        ({"method": "eagle3", "model": ""}, "model: must be a path"),
        ({"method": "eagle3", "model": "a:b"}, "model: must be a path without colons"),
        ({"method": "suffix", "token_map": "y"}, "token_map is no parameter of suffix"),
        ({"method": "eagle3", "model": "x", "boundaries": [1, -2]}, "boundaries: .*0, got -2"),
        ({"method": "eagle3", "model": "x", "num_steps": 5, "num_draft_tokens": 5}, "num_draft_tokens: .*least 6"),
        (
            {"method": "eagle3", "model": "x", "num_steps": 5, "num_draft_tokens": 8, "speculative_eagle_topk": 1},
            "num_draft_tokens: must be 6 where speculative_eagle_topk is 1",
        ),
        ({"method": "draft_model", "model": "x", "draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size: .*1"),
        ({"method": "ngram", "inproc": "yes"}, "inproc: .*boolean, got 'yes'"),
        ({"method": "suffix", "mode": "bush"}, "mode: .*'tree' or 'path'"),
        ({"method": "suffix", "max_spec_factor": float("nan")}, "max_spec_factor: .*finite"),
        ({"method": "hybrid", "members": ["a b"]}, "members: .*'a b'"),
        ([], "at least one"),
        ("ngram", "must be an object"),
        ([{"method": "ngram"}, {"method": "NGRAM"}], "twice, both with or both without inproc: ngram, ngram"),
        ([{"method": "ngram"}, {"method": "suffix", "x": 1}], r"speculative_config\[1\]: unknown key 'x'"),
        ({"method": "other=a:b", "num_steps": 3}, "num_steps is no parameter of other"),
    ],
)  # fmt: skip
def test_whatever_does_not_fit_is_refused_by_its_name(config, reason):
    with pytest.raises(ValueError, match=reason):
        read(config)


def test_json_may_lie_in_a_file_and_hold_several(tmp_path):
    text = json.dumps([{"method": "suffix"}, {"method": "ngram", "num_speculative_tokens": 3}])
    file = tmp_path / "speculation.json"
    file.write_text(text)
    assert json_text(str(file)) == text == json_text(text)
    assert [config.name for config in parse(text)] == ["suffix", "ngram"]
    with pytest.raises(ValueError, match="neither JSON nor a file"):
        json_text(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"method": "ngram"', "no JSON"),
        ('{"method": "ngram", "method": "suffix"}', "method is there twice"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_broken_json_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_the_served_model_is_lent_to_those_that_read_it_unless_another_is_named(tmp_path):
    head, own, other = read(
        [
            {"method": "eagle3", "model": "/a"},
            {"method": "eagle", "model": "/b", "target": "/t"},
            {"method": "ngram"},
        ]
    )
    assert head.serving(tmp_path).spec == f"eagle3:/a:target={tmp_path}"
    assert own.serving(tmp_path).spec == "eagle:/b:target=/t"
    assert other.serving(tmp_path).spec == "ngram"
    with pytest.raises(ValueError, match="target: must be a path without colons"):
        head.serving(tmp_path / "a:b")


def test_all_names_lead_to_fields_and_proposers():
    assert set(NAMES.values()) <= SpeculativeConfig.model_fields.keys()
    assert set(METHODS.values()) <= PARAMETERS.keys()
    assert frozenset().union(*PARAMETERS.values()) <= SpeculativeConfig.model_fields.keys()


CONFIGS = {
    "draft-model": "draft_service.proposers.draft_model.base:DraftModelConfig",
    "eagle": "draft_service.proposers.eagle.base:EagleConfig",
    "eagle3": "draft_service.proposers.eagle.base:EagleConfig",
    "hybrid": "draft_service.proposers.hybrid.hybrid:HybridConfig",
    "medusa": "draft_service.proposers.last_hidden_state.base:LastHiddenStateConfig",
    "mlp-speculator": "draft_service.proposers.last_hidden_state.base:LastHiddenStateConfig",
    "mtp": "draft_service.proposers.eagle.mtp:MtpConfig",
    "ngram": "draft_service.proposers.ngram.ngram:NgramConfig",
    "suffix": "draft_service.proposers.suffix.suffix:SuffixConfig",
}


def test_mtp_layers_lie_in_the_served_model_unless_another_folder_is_named(tmp_path):
    (inside,) = read({"method": "mimo_mtp", "num_speculative_tokens": 1})
    assert inside.serving(tmp_path).spec == f"mtp:{tmp_path}:max_depth=1:max_nodes=2"
    with pytest.raises(ValueError, match="mtp needs a model"):
        _ = inside.spec
    (outside,) = read({"speculative_algorithm": "NEXTN", "model": "/extracted", "feedback": "post-norm"})
    assert outside.serving(tmp_path).spec == f"mtp:/extracted:target={tmp_path}:feedback=post-norm"


@pytest.mark.parametrize("method", PARAMETERS)
def test_each_proposer_has_the_parameters_and_takes_their_limits(method):
    module, _, kind = CONFIGS[method].partition(":")
    default = getattr(import_module(module), kind)()
    names = PARAMETERS[method] - {"model", "members", "num_speculative_tokens"}
    assert names == type(default).__dataclass_fields__.keys()
    for name in sorted(names):
        for limit in limits(name):
            given = {"method": method, name: limit} | ({"model": "x"} if "model" in PARAMETERS[method] else {})
            given |= {
                "prompt_lookup_min": {"prompt_lookup_max": 64},
                "prompt_lookup_max": {"prompt_lookup_min": 1},
            }.get(name, {})
            argument = spec(given).removeprefix(method).removeprefix(":x").removeprefix(":")
            assert getattr(configured(default, ProposerOptions(method, argument)), name) == limit


def limits(name: str) -> list[float]:
    """The least and the most that the configuration lets through."""
    metadata = SpeculativeConfig.model_fields[name].metadata
    return [getattr(each, side) for each in metadata for side in ("ge", "le") if getattr(each, side, None) is not None]
