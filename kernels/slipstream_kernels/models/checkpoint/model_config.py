"""What a Hugging Face folder says about its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream_kernels.models.checkpoint.config_fields import (
    CheckpointError,
    count,
    number,
    read_json,
    shown,
    size,
    text,
    token_ids,
)
from slipstream_kernels.models.checkpoint.expert_form import has_fused_experts
from slipstream_kernels.models.checkpoint.llama4_form import LLAMA4
from slipstream_kernels.models.checkpoint.model_form import FAMILIES, PLAIN, ModelForm, is_tied, read_form
from slipstream_kernels.models.checkpoint.quantisation.mxfp4 import GROUP
from slipstream_kernels.models.checkpoint.quantisation.quantisation_config import read_quantisation
from slipstream_kernels.models.checkpoint.quantisation.scheme import Quantisation
from slipstream_kernels.models.checkpoint.rope_fields import read_rope
from slipstream_kernels.models.checkpoint.text_part import read_text_fields, text_prefix
from slipstream_kernels.models.checkpoint.tied_head import has_own_head
from slipstream_kernels.ops.attention_form import AttentionForm
from slipstream_kernels.ops.query_temperature import QueryTemperature
from slipstream_kernels.ops.rope import STILL, Rope

__all__ = ["FAMILIES", "CheckpointError", "ModelConfig", "read_json"]

_HEAD_DIMS = {"gemma2": 256, "gemma3_text": 256, "gpt_oss": 64, **dict.fromkeys(LLAMA4, 128)}
"""Of families whose files need not name it, and where it is not the hidden size's share."""
_BASES = {"gemma3_text": 1e6, "gpt_oss": 1.5e5, "mixtral": 1e6, **dict.fromkeys(LLAMA4, 5e5)}
"""Of rotary frequencies, where the file names none and it is not 10,000."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a decoder. Sizes are in elements, the context in tokens.

    intermediate_size: of the layers that have no experts.
    rope: how heads turn, in the layers that `form` does not say otherwise of.
    tie_word_embeddings: the head is the embedding; not where the folder has another one, whatever config.json says.
    num_mtp_layers: layers that predict further tokens; drafters read them from the same folder, the model never.
    quantisation: which weights are stored in fewer bits; None: none.
    fused_experts: the folder has the experts of a layer as one tensor.
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
    rope: Rope
    max_context: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    num_mtp_layers: int = 0
    quantisation: Quantisation | None = None
    form: ModelForm = PLAIN
    fused_experts: bool = False

    @property
    def q_size(self) -> int:
        """Columns of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    def rope_of(self, layer: int) -> Rope:
        """How heads turn in a layer."""
        if not self.turns(layer):
            return STILL
        local = self.form.local_rope
        return self.rope if local is None or not self.form.window_layers[layer] else local

    def turns(self, layer: int) -> bool:
        """Whether heads of a layer turn at all."""
        return not (self.form.still_layers and self.form.still_layers[layer])

    def temperature_of(self, layer: int) -> QueryTemperature | None:
        """What a layer's queries are multiplied by; None: by nothing."""
        return None if self.turns(layer) else self.form.temperature

    @property
    def temperatures(self) -> tuple[QueryTemperature, ...]:
        """All that layers' queries are multiplied by."""
        found = map(self.temperature_of, range(self.num_layers))
        return tuple(dict.fromkeys(each for each in found if each is not None))

    def normalises_heads(self, layer: int) -> bool:
        """Whether a layer's queries and keys are normalised by head, with weights or without."""
        return self.form.head_norms or (self.form.unit_norms and self.turns(layer))

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """All ways in which heads turn."""
        return tuple(dict.fromkeys(map(self.rope_of, range(self.num_layers))))

    @property
    def layers_of_all_kinds(self) -> int:
        """So many of the first layers have one of every kind among them."""
        forms = enumerate(self.attention_forms)
        kinds = [(form, self.has_experts(layer), self.turns(layer)) for layer, form in forms]
        return max(map(kinds.index, kinds)) + 1

    @property
    def packed_experts(self) -> bool:
        """Whether the folder has the experts of a layer as one tensor of codes in MXFP4, and one of their scales."""
        return self.quantisation is not None and self.quantisation.of_experts

    def has_experts(self, layer: int) -> bool:
        """Whether experts stand in the place of a layer's feed-forward network."""
        return self.form.experts is not None and self.form.experts.layers[layer]

    def intermediate_of(self, layer: int) -> int:
        """Intermediate size of the network that computes every row of a layer; 0: its experts alone compute."""
        experts = self.form.experts
        return experts.shared_size if experts is not None and experts.layers[layer] else self.intermediate_size

    @property
    def widest_intermediate(self) -> int:
        """The largest `intermediate_of`."""
        return max(map(self.intermediate_of, range(self.num_layers)))

    @property
    def attention_forms(self) -> list[AttentionForm]:
        """What each layer's attention computes."""
        return [self.attention_of(layer) for layer in range(self.num_layers)]

    def attention_of(self, layer: int) -> AttentionForm:
        """What a layer's attention computes."""
        form = self.form
        window = form.window if form.window and form.window_layers[layer] else 0
        chunk = form.chunk if form.chunk and form.window_layers[layer] else 0
        return AttentionForm(window, form.attention_scale, form.attention_cap, form.sinks, chunk)

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read config.json and, for the ends of text, generation_config.json. Raises CheckpointError.

        The weights need not be there. Where config.json ties head and embedding, and both are there, they are compared.
        """
        fields = read_text_fields(folder)
        family = text(fields, "model_type")
        if family not in FAMILIES:
            raise CheckpointError(f"config.json: model_type is {shown(family)}, supported are {', '.join(FAMILIES)}")
        heads, vocab_size = size(fields, "num_attention_heads"), size(fields, "vocab_size")
        head_dim = size(fields, "head_dim", _HEAD_DIMS.get(family, size(fields, "hidden_size") // heads))
        layers, context = size(fields, "num_hidden_layers"), size(fields, "max_position_embeddings")
        types = "full_attention" if family == "gemma3_text" else ""
        rope = read_rope(
            fields, head_dim, layers=types, theta=_BASES.get(family, 10000.0), partial=family == "phi3"
        )  # fmt: skip
        form = read_form(fields, family, layers, context)
        config = cls(
            family=family,
            vocab_size=vocab_size,
            hidden_size=size(fields, "hidden_size"),
            intermediate_size=_intermediate_size(fields, family),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=size(fields, "num_key_value_heads", heads),
            head_dim=head_dim,
            rms_norm_eps=number(fields, "rms_norm_eps", 1e-6),
            rope=rope,
            max_context=context,
            tie_word_embeddings=is_tied(fields) and not has_own_head(folder, text_prefix(family)),
            eos_token_ids=_eos_token_ids(folder, fields, vocab_size),
            bos_token_id=next(iter(token_ids(fields, "bos_token_id", vocab_size)), None),
            num_mtp_layers=count(fields, "num_nextn_predict_layers"),
            quantisation=read_quantisation(fields),
            form=form,
            fused_experts=form.experts is not None and has_fused_experts(folder),
        )
        config._check_shapes()
        return config

    def _check_shapes(self) -> None:
        if self.packed_experts:
            self._check_packed_experts()
        if self.form.unit_norms and self.rope.attention_factor != 1:
            raise CheckpointError("config.json: rope_type is one that scales heads, which use_qk_norm does not allow")
        for name in ("hidden_size", "intermediate_size", "head_dim"):
            if getattr(self, name) % 16:
                raise CheckpointError(f"config.json: {name} is {getattr(self, name)}, must be a multiple of 16")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"config.json: num_attention_heads is {self.num_heads}, "
                f"not a multiple of num_key_value_heads, {self.num_kv_heads}"
            )

    def _check_packed_experts(self) -> None:
        if self.family != "gpt_oss":
            raise CheckpointError(f"config.json: quant_method is 'mxfp4', which is not supported of a {self.family}")
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % GROUP:
                words = f"must be a multiple of {GROUP} where quant_method is 'mxfp4'"
                raise CheckpointError(f"config.json: {name} is {getattr(self, name)}, {words}")


def _intermediate_size(fields: Mapping[str, Any], family: str) -> int:
    """Of the layers that have no experts."""
    return size(fields, "intermediate_size_mlp", 16384) if family in LLAMA4 else size(fields, "intermediate_size")


def _eos_token_ids(folder: Path, fields: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    if generation.get("eos_token_id") is None:
        return token_ids(fields, "eos_token_id", vocab_size)
    return token_ids(generation, "eos_token_id", vocab_size, path.name)
