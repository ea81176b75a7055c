"""The part of a checkpoint of several modes that reads and writes text: its fields of config.json and its tensors.

Of a Llama-4 it is `text_config`, and the tensors whose names begin with `TEXT_PREFIX`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, read_json, section, shown

TEXT_PREFIX = "language_model."
"""Of the names of tensors of the part that is text."""
OTHER_PREFIXES = ("vision_model.", "multi_modal_projector.")
"""Of those of the others."""
_NESTED = {"llama4": "llama4_text"}
"""`model_type` of the whole, and of its part that is text."""
_OF_THE_WHOLE = ("quantization_config", "compression_config", "tie_word_embeddings", "bos_token_id", "eos_token_id")
"""Fields that stand outside of the part as well, and count where it has none of its own."""


def read_text_fields(folder: Path) -> Mapping[str, Any]:
    """config.json of a model of text, or what it says of the part that is; `model_type` stays that of the whole.

    Raises CheckpointError.
    """
    whole = read_json(folder / "config.json")
    kind = whole.get("model_type")
    if not isinstance(kind, str) or not has_other_parts(kind):
        return whole
    part = section(whole, "text_config")
    if not part:
        raise CheckpointError(f"config.json: text_config is missing, which a {kind} has")
    if part.get("model_type") not in (None, _NESTED[kind]):
        raise CheckpointError(
            f"config.json: text_config.model_type is {shown(part['model_type'])}, supported is {_NESTED[kind]!r}"
        )
    shared = {name: whole[name] for name in _OF_THE_WHOLE if name in whole and part.get(name) is None}
    return {**part, **shared, "model_type": kind}


def has_other_parts(model_type: object) -> bool:
    """Whether models of a `model_type` have parts beside that which is text."""
    return isinstance(model_type, str) and model_type in _NESTED


def text_prefix(model_type: object) -> str:
    """What names of a model's tensors begin with; empty where it is text alone."""
    return TEXT_PREFIX if has_other_parts(model_type) else ""
