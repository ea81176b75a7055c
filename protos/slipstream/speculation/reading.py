"""Reads configurations of speculation from JSON, in whichever engine's names they are written.

An object is written as vLLM's `speculative_config`: `{"method": "eagle3", "model": DIR, "num_speculative_tokens": 5}`.
SGLang's names and those of the proposers' own parameters stand for the same fields. A list of objects configures
several proposers. Whatever is unknown, of a wrong type, out of range or contradictory is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slipstream.speculation import PROPOSER_ENTRY_POINTS
from slipstream.speculation.checkpoint_names import method_of
from slipstream.speculation.config import PARAMETERS, SpeculativeConfig

METHODS = {
    "draft_model": "draft-model",
    "mlp_speculator": "mlp-speculator",
    "deepseek_mtp": "mtp",
    "mimo_mtp": "mtp",
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NEXTN": "mtp",
    "STANDALONE": "draft-model",
    "NGRAM": "ngram",
}
"""Our proposers by vLLM's methods and SGLang's algorithms, where these are called otherwise."""

NAMES = {
    "num_steps": "max_depth",
    "num_draft_tokens": "max_nodes",
    "topk": "top_k",
    "speculative_algorithm": "method",
    "speculative_draft_model_path": "model",
    "speculative_num_steps": "max_depth",
    "speculative_num_draft_tokens": "max_nodes",
    "speculative_eagle_topk": "top_k",
    "speculative_token_map": "token_map",
    "suffix_decoding_max_tree_depth": "max_tree_depth",
    "suffix_decoding_max_spec_factor": "max_spec_factor",
    "suffix_decoding_max_spec_offset": "max_spec_offset",
    "suffix_decoding_min_token_prob": "min_token_prob",
    "suffix_decoding_max_cached_requests": "max_cached_requests",
}
"""Fields of SpeculativeConfig by the other names that they have. vLLM's count of speculative tokens is a field of its
own, for it leaves the root out; SGLang's of draft tokens counts it."""

_COMMON = {"method", "inproc", "draft_tensor_parallel_size"}
_WHERE = "speculative_config"


def parse(text: str) -> tuple[SpeculativeConfig, ...]:
    """The configurations in a JSON text. ValueError names the key and its limit."""
    try:
        return read(json.loads(text, object_pairs_hook=_object))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{_WHERE} is no JSON: {error}") from error


def json_text(given: str) -> str:
    """JSON as it is given on a command line: the text itself, or the name of a file that holds it. ValueError."""
    if given.lstrip().startswith(("{", "[")):
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{_WHERE} is neither JSON nor a file that can be read: {error}") from error


def read(source: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[SpeculativeConfig, ...]:
    """One configuration or several. ValueError names the key and its limit."""
    listed: Any = [source] if isinstance(source, Mapping) else source
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(each, Mapping) for each in listed):
        raise ValueError(f"{_WHERE} must be an object or a list of objects, at least one")
    configs = []
    for index, each in enumerate(listed):
        try:
            configs.append(_read_one(each))
        except ValueError as error:
            raise ValueError(f"{_WHERE}{f'[{index}]' if len(listed) > 1 else ''}: {error}") from error
    places = [(config.name, bool(config.inproc)) for config in configs]
    if len(set(places)) < len(places):
        names = ", ".join(name for name, _ in places)
        raise ValueError(f"{_WHERE} names a proposer twice, both with or both without inproc: {names}")
    return tuple(configs)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    repeated = sorted({key for key in keys if keys.count(key) > 1})
    if repeated:
        raise ValueError(f"{_WHERE}: {', '.join(repeated)} is there twice")
    return dict(pairs)


def _read_one(source: Mapping[str, Any]) -> SpeculativeConfig:
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in source.items():
        field = NAMES.get(key, key)
        if field not in SpeculativeConfig.model_fields:
            known = sorted({*SpeculativeConfig.model_fields, *NAMES})
            raise ValueError(f"unknown key {key!r}; known are {', '.join(known)}")
        if value is None:
            continue
        if field in values:
            raise ValueError(f"{keys[field]} and {key} say the same; give one of them")
        values[field], keys[field] = value, key
    values["method"] = _method(values, keys)
    try:
        config = SpeculativeConfig.model_validate(values)
    except ValidationError as error:
        raise ValueError("; ".join(_explained(dict(detail), keys) for detail in error.errors())) from None
    _check_fields(config, keys)
    _check_sizes(config, keys)
    return config


def _method(values: Mapping[str, Any], keys: Mapping[str, str]) -> str:
    """Our name of the proposer; without one, what the names of the tensors in the folder `model` say."""
    method, model = values.get("method"), values.get("model")
    if method is None:
        if not isinstance(model, str):
            raise ValueError("needs a method, or a model whose tensors tell it")
        try:
            return method_of(Path(model).expanduser())
        except ValueError as error:
            raise ValueError(f"{keys['model']}: {error}; name the method") from error
    name = METHODS.get(method, method) if isinstance(method, str) else ""
    if not (name in PARAMETERS or "=" in name or entry_points(group=PROPOSER_ENTRY_POINTS, name=name)):
        known = ", ".join(sorted(PARAMETERS.keys() | METHODS.keys()))
        raise ValueError(f"{keys['method']}: must be one of {known}, or a proposer of another package, got {method!r}")
    return name


def _explained(detail: Mapping[str, Any], keys: Mapping[str, str]) -> str:
    name = str(detail["loc"][0])
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{keys.get(name, name)}: {message[:1].lower()}{message[1:]}, got {detail['input']!r}"


def _check_fields(config: SpeculativeConfig, keys: Mapping[str, str]) -> None:
    """ValueError for fields that the proposer does not have, or needs. MTP layers may lie in the served model."""
    own = PARAMETERS.get(config.method, frozenset({"model"}))
    for field, key in keys.items():
        if field not in own | _COMMON:
            raise ValueError(f"{key} is no parameter of {config.name}, which has {', '.join(sorted(own))}")
    if config.model is None and "model" in PARAMETERS.get(config.method, ()) and config.method != "mtp":
        raise ValueError(f"{config.name} needs a model, the folder of its weights")


def _check_sizes(config: SpeculativeConfig, keys: Mapping[str, str]) -> None:
    """ValueError for sizes that contradict one another."""
    depth, rows = config.depth, config.rows
    if config.max_depth and config.num_speculative_tokens:
        raise ValueError(f"{keys['max_depth']} and num_speculative_tokens say the same; give one of them")
    if depth and rows and rows <= depth:
        raise ValueError(
            f"{keys['max_nodes']}: must be at least {depth + 1}, for the root and a path of {depth}, got {rows}"
        )
    if config.top_k == 1 and depth and rows and rows > depth + 1:
        raise ValueError(
            f"{keys['max_nodes']}: must be {depth + 1} where {keys['top_k']} is 1, the rows of a chain of {depth}, "
            f"got {rows}"
        )
    shortest, longest = config.prompt_lookup_min, config.prompt_lookup_max
    if shortest and longest and shortest > longest:
        raise ValueError(f"prompt_lookup_min: must be at most prompt_lookup_max, which is {longest}, got {shortest}")
