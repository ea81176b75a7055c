"""What a head's config.json says, in any of the forms that public checkpoints have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draft_service.heads.quantised import head_quantisation
from slipstream_kernels.models.checkpoint.config_fields import (
    CheckpointError,
    count,
    flag,
    number,
    read_json,
    section,
    shown,
    size,
    token_ids,
)
from slipstream_kernels.models.checkpoint.head_boundaries import named_boundaries
from slipstream_kernels.models.checkpoint.llama4_form import LLAMA4
from slipstream_kernels.models.checkpoint.quantisation.scheme import Quantisation
from slipstream_kernels.models.checkpoint.rope_fields import read_rope
from slipstream_kernels.ops.rope import Rope


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Shape and conventions of a head.

    vocab_size: the target's; draft_vocab_size: tokens that are scored; num_aux_hidden_states: boundaries that are read;
    0 where the file does not say. target_hidden_size: width of the target's states.
    boundaries: those the file names, in our numbering (`slipstream_kernels.models.capture_layers`); empty: it has none.
    quantisation: of its weights; None: there is none.
    norm_before_residual: the first layer's residual is the normalised state.
    norm_before_fc, fc_norm: one norm before fc, or one for each boundary. norm_output: as the file has it; what it
    means depends on the producer (`loading`). speculators: the file has that project's form.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    vocab_size: int
    target_hidden_size: int
    boundaries: tuple[int, ...]
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    tie_word_embeddings: bool
    speculators: bool
    eos_token_ids: tuple[int, ...]
    draft_vocab_size: int = 0
    num_aux_hidden_states: int = 0
    quantisation: Quantisation | None = None

    @classmethod
    def from_folder(cls, folder: Path, *, of_target: bool = False) -> HeadConfig:
        """Read config.json, of a head or of a target's layers, whose weights may be quantised. CheckpointError."""
        outer = read_json(folder / "config.json")
        layer = section(outer, "transformer_layer_config") or outer
        if not of_target and layer.get("model_type") in LLAMA4:
            raise CheckpointError(
                f"config.json: model_type is {shown(layer['model_type'])}, supported are heads with layers of a Llama"
            )
        if (act := layer.get("hidden_act")) not in (None, "silu"):
            raise CheckpointError(f"config.json: hidden_act is {shown(act)}, supported is 'silu'")
        hidden, heads = size(layer, "hidden_size"), size(layer, "num_attention_heads")
        vocab_size = count(layer, "vocab_size") or count(outer, "vocab_size")
        return cls(
            hidden_size=hidden,
            intermediate_size=size(layer, "intermediate_size"),
            num_layers=size(layer, "num_hidden_layers", 1),
            num_heads=heads,
            num_kv_heads=size(layer, "num_key_value_heads", heads),
            head_dim=(head_dim := size(layer, "head_dim", hidden // heads)),
            rms_norm_eps=number(layer, "rms_norm_eps", 1e-6),
            rope=read_rope(layer, head_dim),
            vocab_size=vocab_size,
            target_hidden_size=size(outer, "target_hidden_size", hidden),
            boundaries=named_boundaries(outer),
            norm_before_residual=flag(outer, "norm_before_residual"),
            norm_before_fc=flag(outer, "norm_before_fc"),
            fc_norm=flag(outer, "fc_norm"),
            norm_output=flag(outer, "norm_output"),
            tie_word_embeddings=flag(outer, "tie_word_embeddings") or flag(layer, "tie_word_embeddings"),
            speculators="speculators_model_type" in outer,
            eos_token_ids=token_ids(layer, "eos_token_id", vocab_size),
            draft_vocab_size=_told(outer, layer, "draft_vocab_size"),
            num_aux_hidden_states=_told(outer, layer, "num_aux_hidden_states"),
            quantisation=None if of_target else head_quantisation(outer, layer),
        )


def _told(outer: Mapping[str, Any], layer: Mapping[str, Any], name: str) -> int:
    """A size in either part of the file, 0 where none has it."""
    config = layer if outer.get(name) is None else outer
    return count(config, name)
