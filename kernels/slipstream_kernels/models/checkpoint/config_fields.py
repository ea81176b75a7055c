"""JSON files of a checkpoint and the fields of its config.json, checked as they are read.

A folder is untrusted: every error is one line that names file, field, value and limit, before anything is sized by it.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

MOST_JSON_BYTES = 1 << 26
"""Of a JSON file; the largest index of a public checkpoint has some 2^24."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
"""How the few lines begin that stand in a clone for a large file that was not fetched.

https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""

_MOST = {
    **dict.fromkeys(("vocab_size", "draft_vocab_size", "truncated_vocab_size"), 1 << 20),
    **dict.fromkeys(("hidden_size", "target_hidden_size", "emb_dim", "inner_dim"), 1 << 17),
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings", "sliding_window"), 1 << 24),
    **dict.fromkeys(("num_hidden_layers", "num_aux_hidden_states"), 1 << 10),
    **dict.fromkeys(("num_nextn_predict_layers", "n_predict"), 1 << 6),
    **dict.fromkeys(("medusa_num_heads", "medusa_num_layers", "num_heads"), 1 << 6),
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp"), 1 << 20),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 1 << 20),
    **dict.fromkeys(("attention_chunk_size", "floor_scale"), 1 << 24),
    **dict.fromkeys(("num_experts", "num_local_experts"), 1 << 11),
    "num_experts_per_tok": 1 << 5,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12,
}
"""The largest value of a size, several times that of any public checkpoint; of all others it is 2^31 - 1."""

_RANGES = {
    "rms_norm_eps": (1e-30, 1.0),
    "rope_theta": (1.0, 1e15),
    "factor": (1e-3, 1e6),
    "low_freq_factor": (1e-6, 1e6),
    "high_freq_factor": (1e-6, 1e6),
    "attention_factor": (1e-3, 1e3),
    "beta_fast": (1e-3, 1e6),
    "beta_slow": (1e-3, 1e6),
    "mscale": (1e-3, 1e3),
    "mscale_all_dim": (1e-3, 1e3),
    "short_factor": (1e-3, 1e6),
    "long_factor": (1e-3, 1e6),
    "partial_rotary_factor": (1e-3, 1.0),
    "query_pre_attn_scalar": (1e-3, 1e6),
    "attn_logit_softcapping": (1e-3, 1e6),
    "final_logit_softcapping": (1e-3, 1e6),
    "rope_local_base_freq": (1.0, 1e15),
    "logit_scale": (1e-6, 1e6),
    "swiglu_limit": (1e-3, 1e6),
    "attn_scale": (1e-6, 1e3),
}
"""The least and the greatest value of a number."""

_MOST_TOKEN_IDS = 1 << 10
"""Of a list of ends of text."""

_LONGEST_MESSAGE = 600
"""Characters of an error."""

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 80, 80


class CheckpointError(ValueError):
    """A folder that is not a model we can run; the message names the file, field or tensor on one line."""

    def __init__(self, message: object) -> None:
        """The message may quote names of an untrusted file: what does not print is escaped, and the rest cut."""
        whole = " ".join(str(message).split())
        line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in whole[:_LONGEST_MESSAGE])
        super().__init__(line if len(whole) <= _LONGEST_MESSAGE else f"{line}...")


def shown(value: object) -> str:
    """A value of a file in an error message: `repr`, cut to a readable length."""
    return _SHORT.repr(value)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError for any other file, and for one beyond MOST_JSON_BYTES."""
    try:
        text = read_bounded(path, MOST_JSON_BYTES)
        content = json.loads(text.decode("utf-8"))
    except RecursionError as error:
        raise CheckpointError(f"{path}: lists and objects are nested too deeply") from error
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def read_bounded(path: Path, most: int) -> bytes:
    """A regular file of at most `most` bytes. Raises CheckpointError for anything else."""
    size = regular_size(path)
    if size > most:
        raise CheckpointError(f"{path}: the file has {size} bytes, the limit is {most}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    refuse_pointer(path, content)
    return content


def refuse_pointer(path: Path, content: bytes) -> None:
    """Raises CheckpointError, which says what to do, if what a file holds begins as a pointer of git-lfs does."""
    if content.startswith(LFS_POINTER):
        raise CheckpointError(
            f"{path}: a git-lfs pointer stands here, not the file itself; run `git lfs pull` in {path.parent}"
        )


def regular_size(path: Path) -> int:
    """Bytes of a regular file; a pipe or a device would be read for ever. Raises CheckpointError."""
    try:
        regular, size = path.is_file(), path.stat().st_size
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not regular:
        raise CheckpointError(f"{path}: not a regular file")
    return size


def size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive integer within its limit; `default` where the field is missing or null. Raises CheckpointError."""
    value = default if config.get(name) is None else config[name]
    if type(value) is not int or value < 1:
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be a positive integer")
    most = _MOST.get(name, (1 << 31) - 1)
    if value > most:
        raise CheckpointError(f"config.json: {name} is {shown(value)}, the limit is {most}")
    return value


def count(config: Mapping[str, Any], name: str) -> int:
    """A `size`, or 0 where the field is missing, null or 0. Raises CheckpointError."""
    value = config.get(name)
    return 0 if value is None or (type(value) is int and value == 0) else size(config, name)


def number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number in its range; `default` where the field is missing or null. Raises CheckpointError."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be a positive number")
    least, most = _RANGES.get(name, (1e-30, 1e30))
    if not least <= value <= most:
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be from {least:g} to {most:g}")
    return float(value)


def flag(config: Mapping[str, Any], name: str) -> bool:
    """True or false, the latter where the field is missing or null. Raises CheckpointError."""
    value = config.get(name)
    if not (value is None or isinstance(value, bool)):
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be true or false")
    return value is True


def text(config: Mapping[str, Any], name: str) -> str:
    """A string. Raises CheckpointError."""
    value = config.get(name)
    if not isinstance(value, str):
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be a string")
    return value


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object, empty where the field is missing or null. Raises CheckpointError."""
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be an object")
    return value


def token_ids(config: Mapping[str, Any], name: str, vocab_size: int, file: str = "config.json") -> tuple[int, ...]:
    """One id or a list of them, below `vocab_size` unless that is 0; empty where the field is missing or null.

    Raises CheckpointError.
    """
    value = config.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if len(ids) > _MOST_TOKEN_IDS or not all(type(token) is int and token >= 0 for token in ids):
        raise CheckpointError(f"{file}: {name} is {shown(value)}, must be a token id or a list of token ids")
    if vocab_size and any(token >= vocab_size for token in ids):
        raise CheckpointError(f"{file}: {name} is {shown(value)}, the vocabulary has ids from 0 to {vocab_size - 1}")
    return tuple(ids)


def numbers(config: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    """A list of `count` positive numbers in the range of such a field. Raises CheckpointError."""
    value = config.get(name)
    if not isinstance(value, list) or len(value) != count:
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be a list of {count} numbers")
    return tuple(number({name: each}, name) for each in value)


def layer_names(config: Mapping[str, Any], name: str, layers: int, known: Collection[str]) -> tuple[str, ...] | None:
    """A list of one of `known` for each layer; None where the field is missing or null. Raises CheckpointError."""
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != layers:
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be a list of {layers}, one a layer")
    for each in value:
        if each not in known:
            raise CheckpointError(f"config.json: {name} has {shown(each)}, supported are {', '.join(known)}")
    return tuple(value)
