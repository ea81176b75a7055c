"""What a head's config.json says, in any of the forms that public checkpoints have."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draft_service.heads.fields import number, size
from slipstream_kernels.models.config import CheckpointError, read_json
from slipstream_kernels.ops.rotary import Llama3Scaling

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Shape and conventions of a head.

    vocab_size: the target's; draft_vocab_size: tokens that are scored; num_aux_hidden_states: boundaries that are read;
    0 where the file does not say. target_hidden_size: width of the target's states.
    boundaries: those the file names, in our numbering (`slipstream_kernels.models.boundaries`); empty: it names none.
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
    rope_theta: float
    rope_scaling: Llama3Scaling | None
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

    @classmethod
    def from_folder(cls, folder: Path) -> HeadConfig:
        """Read config.json. Raises CheckpointError."""
        outer = read_json(folder / "config.json")
        nested = outer.get("transformer_layer_config")
        layer = nested if isinstance(nested, dict) else outer
        if (act := layer.get("hidden_act")) not in (None, "silu"):
            raise CheckpointError(f"config.json: hidden_act is {act!r}, supported is 'silu'")
        if (part := layer.get("partial_rotary_factor")) not in (None, 1):
            raise CheckpointError(f"config.json: partial_rotary_factor is {part!r}, supported is 1")
        hidden, heads = size(layer, "hidden_size"), size(layer, "num_attention_heads")
        eos = layer.get("eos_token_id")
        return cls(
            hidden_size=hidden,
            intermediate_size=size(layer, "intermediate_size"),
            num_layers=size(layer, "num_hidden_layers", 1),
            num_heads=heads,
            num_kv_heads=size(layer, "num_key_value_heads", heads),
            head_dim=size(layer, "head_dim", hidden // heads),
            rms_norm_eps=number(layer, "rms_norm_eps", 1e-6),
            rope_theta=_rope_theta(layer),
            rope_scaling=_rope_scaling(layer),
            vocab_size=layer.get("vocab_size") or outer.get("vocab_size") or 0,
            target_hidden_size=size(outer, "target_hidden_size", hidden),
            boundaries=_boundaries(outer),
            norm_before_residual=bool(outer.get("norm_before_residual")),
            norm_before_fc=bool(outer.get("norm_before_fc")),
            fc_norm=bool(outer.get("fc_norm")),
            norm_output=bool(outer.get("norm_output")),
            tie_word_embeddings=bool(outer.get("tie_word_embeddings") or layer.get("tie_word_embeddings")),
            speculators="speculators_model_type" in outer,
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
            draft_vocab_size=_told(outer, layer, "draft_vocab_size"),
            num_aux_hidden_states=_told(outer, layer, "num_aux_hidden_states"),
        )


def _told(outer: Mapping[str, Any], layer: Mapping[str, Any], name: str) -> int:
    """A size in either part of the file, 0 where none has it."""
    config = layer if outer.get(name) is None else outer
    return 0 if config.get(name) is None else size(config, name)


def _boundaries(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Boundaries named by the file; each producer counts differently.

    A list at the top level (speculators, vLLM) holds boundaries. One in eagle_config holds, by SGLang's rule, outputs
    of layers where it begins with 1, one less than the boundary; other lists there (NVIDIA's) hold boundaries.
    """
    name = "eagle_aux_hidden_state_layer_ids"
    nested = config.get("eagle_config")
    inner: Any = nested.get(name) if isinstance(nested, dict) else None
    top = config.get(name)
    ids = inner if top is None else top
    if ids is None:
        return ()
    if not isinstance(ids, list) or not ids or not all(type(each) is int and each >= 0 for each in ids):
        raise CheckpointError(f"config.json: {name} is {ids!r}, must be a list of layers")
    outputs = top is None and ids[0] == 1
    if ids[0] == 1 and not outputs:
        _log.warning("%s begins with 1: if it was copied from outputs of layers, name the boundaries yourself", name)
    return tuple(each + outputs for each in ids)


def _rope_theta(config: Mapping[str, Any]) -> float:
    parameters = config.get("rope_parameters")
    inner = number(parameters, "rope_theta", 10000.0) if isinstance(parameters, dict) else 10000.0
    return number(config, "rope_theta", inner)


def _rope_scaling(config: Mapping[str, Any]) -> Llama3Scaling | None:
    for name in ("rope_scaling", "rope_parameters"):
        section = config.get(name)
        if not isinstance(section, dict):
            continue
        kind = section.get("rope_type") or section.get("type") or "default"
        if kind == "llama3":
            return Llama3Scaling(
                factor=number(section, "factor"),
                low_freq_factor=number(section, "low_freq_factor"),
                high_freq_factor=number(section, "high_freq_factor"),
                original_context=size(section, "original_max_position_embeddings"),
            )
        if kind != "default":
            raise CheckpointError(f"config.json: {name}.rope_type is {kind!r}, supported are 'default' and 'llama3'")
    return None
