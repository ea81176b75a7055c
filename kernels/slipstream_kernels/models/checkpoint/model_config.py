"""What a Hugging Face folder says about its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream_kernels.models.checkpoint.config_fields import (
    CheckpointError,
    count,
    flag,
    number,
    read_json,
    rope_scaling,
    rope_theta,
    shown,
    size,
    text,
    token_ids,
)
from slipstream_kernels.models.checkpoint.quantisation.quantisation_config import read_quantisation
from slipstream_kernels.models.checkpoint.quantisation.scheme import Quantisation
from slipstream_kernels.models.checkpoint.tied_head import has_own_head
from slipstream_kernels.ops.rotary import Llama3Scaling

__all__ = ["FAMILIES", "CheckpointError", "ModelConfig", "read_json"]

FAMILIES = ("llama", "mimo", "mistral", "qwen2", "qwen3")
_BIASED = ("mimo", "qwen2")
"""Families whose query, key and value projections have a bias."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a dense decoder of the Llama family. Sizes are in elements, the context in tokens.

    tie_word_embeddings: the head is the embedding; not where the folder has another one, whatever config.json says.
    num_mtp_layers: layers that predict further tokens; drafters read them from the same folder, the model never.
    quantisation: which weights are stored in fewer bits; None: none.
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
    quantisation: Quantisation | None = None

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
        """Read config.json and, for the ends of text, generation_config.json. Raises CheckpointError.

        The weights need not be there. Where config.json ties head and embedding, and both are there, they are compared.
        """
        fields = read_json(folder / "config.json")
        family = text(fields, "model_type")
        if family not in FAMILIES:
            raise CheckpointError(f"config.json: model_type is {shown(family)}, supported are {', '.join(FAMILIES)}")
        _refuse_variants(fields, family)
        heads, vocab_size = size(fields, "num_attention_heads"), size(fields, "vocab_size")
        config = cls(
            family=family,
            vocab_size=vocab_size,
            hidden_size=size(fields, "hidden_size"),
            intermediate_size=size(fields, "intermediate_size"),
            num_layers=size(fields, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=size(fields, "num_key_value_heads", heads),
            head_dim=size(fields, "head_dim", size(fields, "hidden_size") // heads),
            rms_norm_eps=number(fields, "rms_norm_eps", 1e-6),
            rope_theta=rope_theta(fields),
            rope_scaling=rope_scaling(fields),
            max_context=_context(fields, family),
            tie_word_embeddings=flag(fields, "tie_word_embeddings") and not has_own_head(folder),
            eos_token_ids=_eos_token_ids(folder, fields, vocab_size),
            bos_token_id=next(iter(token_ids(fields, "bos_token_id", vocab_size)), None),
            num_mtp_layers=count(fields, "num_nextn_predict_layers"),
            quantisation=read_quantisation(fields),
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


def _refuse_variants(fields: Mapping[str, Any], family: str) -> None:
    if fields.get("hidden_act") not in (None, "silu"):
        raise CheckpointError(f"config.json: hidden_act is {shown(fields['hidden_act'])}, supported is 'silu'")
    if fields.get("partial_rotary_factor") not in (None, 1):
        raise CheckpointError(
            f"config.json: partial_rotary_factor is {shown(fields['partial_rotary_factor'])}, supported is 1"
        )
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if flag(fields, name) and not (name == "attention_bias" and family in _BIASED):
            raise CheckpointError(f"config.json: {name} is set, which is not supported")


def _context(fields: Mapping[str, Any], family: str) -> int:
    """Positions the model can use; full attention equals a sliding window as long as all positions fit the window."""
    context = size(fields, "max_position_embeddings")
    return min(context, size(fields, "sliding_window", context)) if family == "mistral" else context


def _eos_token_ids(folder: Path, fields: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    if generation.get("eos_token_id") is None:
        return token_ids(fields, "eos_token_id", vocab_size)
    return token_ids(generation, "eos_token_id", vocab_size, path.name)
