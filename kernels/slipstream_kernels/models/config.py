"""What a Hugging Face folder says about its model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream_kernels.ops.rotary import Llama3Scaling

FAMILIES = ("llama", "mimo", "mistral", "qwen2", "qwen3")
_BIASED = ("mimo", "qwen2")
"""Families whose query, key and value projections have a bias."""


class CheckpointError(ValueError):
    """A folder that is not a model we can run; the message names the file, field or tensor."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a dense decoder of the Llama family. Sizes are in elements, the context in tokens.

    num_mtp_layers: layers that predict further tokens; drafters read them from the same folder, the model never.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    max_context: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    num_mtp_layers: int = 0

    @property
    def attention_bias(self) -> bool:
        """Whether the query, key and value projections have a bias."""
        return self.family in _BIASED

    @property
    def head_norms(self) -> bool:
        """Whether queries and keys are normalised by head."""
        return self.family == "qwen3"

    @property
    def q_size(self) -> int:
        """Columns of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read config.json and, for the ends of text, generation_config.json. Raises CheckpointError."""
        fields = _Fields(read_json(folder / "config.json"))
        family = fields.text("model_type")
        if family not in FAMILIES:
            raise CheckpointError(f"config.json: model_type is {family!r}, supported are {', '.join(FAMILIES)}")
        _refuse_variants(fields, family)
        heads = fields.size("num_attention_heads")
        config = cls(
            family=family,
            vocab_size=fields.size("vocab_size"),
            hidden_size=fields.size("hidden_size"),
            intermediate_size=fields.size("intermediate_size"),
            num_layers=fields.size("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=fields.size("num_key_value_heads", heads),
            head_dim=fields.size("head_dim", fields.size("hidden_size") // heads),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope_theta=_rope_theta(fields),
            rope_scaling=_rope_scaling(fields),
            max_context=_context(fields, family),
            tie_word_embeddings=bool(fields.get("tie_word_embeddings")),
            eos_token_ids=_eos_token_ids(folder, fields),
            bos_token_id=fields.get("bos_token_id"),
            num_mtp_layers=fields.size("num_nextn_predict_layers") if fields.get("num_nextn_predict_layers") else 0,
        )
        config._check_shapes()
        return config

    def _check_shapes(self) -> None:
        for name in ("hidden_size", "intermediate_size", "head_dim"):
            if getattr(self, name) % 16:
                raise CheckpointError(f"config.json: {name} is {getattr(self, name)}, must be a multiple of 16")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"config.json: num_attention_heads is {self.num_heads}, "
                f"not a multiple of num_key_value_heads, {self.num_kv_heads}"
            )


class _Fields:
    """Typed reading of config.json; null counts as absent."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = entries

    def get(self, name: str) -> Any:
        return self._entries.get(name)

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise CheckpointError(f"config.json: {name} is {value!r}, must be a string")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        value = default if self.get(name) is None else self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"config.json: {name} is {value!r}, must be a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = default if self.get(name) is None else self.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise CheckpointError(f"config.json: {name} is {value!r}, must be a positive number")
        return float(value)

    def section(self, name: str) -> _Fields:
        value = self.get(name)
        return _Fields(value if isinstance(value, dict) else {})


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def _refuse_variants(fields: _Fields, family: str) -> None:
    if fields.get("hidden_act") not in (None, "silu"):
        raise CheckpointError(f"config.json: hidden_act is {fields.get('hidden_act')!r}, supported is 'silu'")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window", "quantization_config"):
        if fields.get(name) and not (name == "attention_bias" and family in _BIASED):
            raise CheckpointError(f"config.json: {name} is set, which is not supported")


def _rope_theta(fields: _Fields) -> float:
    return fields.number("rope_theta", fields.section("rope_parameters").number("rope_theta", 10000.0))


def _rope_scaling(fields: _Fields) -> Llama3Scaling | None:
    for name in ("rope_scaling", "rope_parameters"):
        section = fields.section(name)
        kind = section.get("rope_type") or section.get("type") or "default"
        if kind == "llama3":
            return Llama3Scaling(
                factor=section.number("factor"),
                low_freq_factor=section.number("low_freq_factor"),
                high_freq_factor=section.number("high_freq_factor"),
                original_context=section.size("original_max_position_embeddings"),
            )
        if kind != "default":
            raise CheckpointError(f"config.json: {name}.rope_type is {kind!r}, supported are 'default' and 'llama3'")
    return None


def _context(fields: _Fields, family: str) -> int:
    """Positions the model can use; full attention equals a sliding window as long as all positions fit the window."""
    context = fields.size("max_position_embeddings")
    return min(context, fields.size("sliding_window", context)) if family == "mistral" else context


def _eos_token_ids(folder: Path, fields: _Fields) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    value = _Fields(read_json(path)).get("eos_token_id") if path.exists() else None
    value = fields.get("eos_token_id") if value is None else value
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in ids):
        raise CheckpointError(f"eos_token_id is {value!r}, must be an integer or a list of integers")
    return tuple(ids)
