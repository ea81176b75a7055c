"""How a family's models differ from a Llama, as its config.json says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from slipstream_kernels.models.checkpoint.config_fields import (
    CheckpointError,
    flag,
    layer_names,
    number,
    section,
    shown,
    size,
)
from slipstream_kernels.models.checkpoint.expert_form import (
    ExpertForm,
    read_gpt_oss,
    read_llama4_experts,
    read_mixtral,
    read_qwen_experts,
)
from slipstream_kernels.models.checkpoint.llama4_form import (
    normalises_heads,
    read_chunks,
    read_temperature,
    still_layers,
)
from slipstream_kernels.models.checkpoint.rope_fields import read_rope
from slipstream_kernels.ops.query_temperature import QueryTemperature
from slipstream_kernels.ops.rope import Rope

Activation = Literal["silu", "gelu_tanh"]
"""Of the gate of a feed-forward layer; gelu_tanh is the approximation of arXiv 1606.08415, section 2, by tanh."""

_Fields = Mapping[str, Any]
_FULL, _SLIDING = _LAYER_TYPES = ("full_attention", "sliding_attention")
_GEMMA = ("gemma2", "gemma3_text")
_GELU = ("gelu_pytorch_tanh",)


@dataclass(frozen=True, slots=True)
class ModelForm:
    """What a model has beside a Llama; with nothing set it is one.

    qkv_bias, output_bias, mlp_bias: biases of the projections to and from the heads, and of the feed-forward layer's.
    head_norms: queries and keys are normalised by head. branch_norms: so is what attention and feed-forward layer add
    to the residual stream. stored_less_one: norms' weights stand in the file less one. fused_projections: queries, keys
    and values are one tensor of the file, and gate and up another. window: positions that a row of the layers of
    `window_layers` sees; 0: all. chunk: a row of these layers sees those of its own chunk of so many; 0: all.
    local_rope: how heads turn in these layers, if otherwise than in others. still_layers: those whose heads do not
    turn. temperature: what queries of these are multiplied by. unit_norms: queries and keys of the others are
    normalised by head, without weights. interleaved: the elements that turn together lie side by side in the file.
    embed_scale: factor of embeddings. attention_scale: of products of query and key, 0: 1 / sqrt(head_dim).
    attention_cap, logit_cap: what scores and logits are softly bounded by, 0: nothing. sinks: each head has a score
    beside those of positions, which takes its share and has no value (arXiv 2309.17453). experts: of the layers that
    have them; None: no layer has.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    branch_norms: bool = False
    stored_less_one: bool = False
    fused_projections: bool = False
    activation: Activation = "silu"
    window: int = 0
    window_layers: tuple[bool, ...] = ()
    chunk: int = 0
    local_rope: Rope | None = None
    still_layers: tuple[bool, ...] = ()
    temperature: QueryTemperature | None = None
    unit_norms: bool = False
    interleaved: bool = False
    embed_scale: float = 1.0
    attention_scale: float = 0.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    sinks: bool = False
    experts: ExpertForm | None = None

    @property
    def beyond_qwen(self) -> tuple[str, ...]:
        """What there is, windows apart, beside a Llama's layers, biases of queries and norms of heads: in words."""
        named = {
            "biases of other projections than queries, keys and values": self.output_bias or self.mlp_bias,
            "norms behind attention and feed-forward layer": self.branch_norms,
            "GELU": self.activation != "silu",
            "scaled embeddings": self.embed_scale != 1,
            "bounds of scores or logits": bool(self.attention_cap or self.logit_cap),
            "sinks": self.sinks,
            "experts": self.experts is not None,
            "chunks": self.chunk > 0,
            "layers whose heads do not turn": any(self.still_layers),
            "norms of heads without weights": self.unit_norms,
        }
        return tuple(words for words, there in named.items() if there)


PLAIN = ModelForm()
"""A Llama's."""


def read_form(fields: _Fields, family: str, layers: int, context: int) -> ModelForm:
    """The form of a model with so many layers and positions. Raises CheckpointError for what is not supported."""
    form = FAMILIES[family](fields, layers)
    _refuse(fields, form)
    if form.window >= context or not any(form.window_layers):
        form = replace(form, window=0)
    if form.chunk >= context or not any(form.window_layers):
        form = replace(form, chunk=0)
    return form


def _llama(fields: _Fields, _layers: int) -> ModelForm:
    biased = flag(fields, "attention_bias")
    return ModelForm(qkv_bias=biased, output_bias=biased, mlp_bias=flag(fields, "mlp_bias"))


def _gpt_oss(fields: _Fields, layers: int) -> ModelForm:
    biased = fields.get("attention_bias") is None or flag(fields, "attention_bias")
    form = ModelForm(qkv_bias=biased, output_bias=biased, sinks=True, experts=read_gpt_oss(fields, layers))
    windowed = _windowed(fields, layers) or tuple(i % 2 == 0 for i in range(layers))
    return _with_window(form, fields, windowed, None if "sliding_window" in fields else 128)


def _llama4(fields: _Fields, layers: int) -> ModelForm:
    biased, still = flag(fields, "attention_bias"), still_layers(fields, layers)
    chunk, chunked = read_chunks(fields, still)
    return ModelForm(
        qkv_bias=biased,
        output_bias=biased,
        chunk=chunk,
        window_layers=chunked,
        still_layers=still,
        temperature=read_temperature(fields),
        unit_norms=normalises_heads(fields),
        interleaved=True,
        experts=read_llama4_experts(fields, layers),
    )


def _mimo(_fields: _Fields, _layers: int) -> ModelForm:
    return ModelForm(qkv_bias=True)


def _mistral(fields: _Fields, layers: int) -> ModelForm:
    return _with_window(ModelForm(), fields, (True,) * layers)


def _mixtral(fields: _Fields, layers: int) -> ModelForm:
    return replace(_mistral(fields, layers), experts=read_mixtral(fields, layers))


def _phi3(fields: _Fields, layers: int) -> ModelForm:
    return _with_window(ModelForm(fused_projections=True), fields, (True,) * layers)


def _qwen2(fields: _Fields, layers: int) -> ModelForm:
    return _qwen_window(ModelForm(qkv_bias=True), fields, layers)


def _qwen3(fields: _Fields, layers: int) -> ModelForm:
    biased = flag(fields, "attention_bias")
    return _qwen_window(ModelForm(qkv_bias=biased, output_bias=biased, head_norms=True), fields, layers)


def _qwen2_moe(fields: _Fields, layers: int) -> ModelForm:
    biased = fields.get("qkv_bias") is None or flag(fields, "qkv_bias")
    return ModelForm(qkv_bias=biased, experts=read_qwen_experts(fields, layers, shared=True))


def _qwen3_moe(fields: _Fields, layers: int) -> ModelForm:
    biased, experts = flag(fields, "attention_bias"), read_qwen_experts(fields, layers, shared=False)
    return ModelForm(qkv_bias=biased, output_bias=biased, head_norms=True, experts=experts)


def _qwen_window(form: ModelForm, fields: _Fields, layers: int) -> ModelForm:
    if not flag(fields, "use_sliding_window"):
        return form
    first = 28 if fields.get("max_window_layers") is None else fields["max_window_layers"]
    if type(first) is not int or first < 0:
        raise CheckpointError(f"config.json: max_window_layers is {shown(first)}, must be a number of layers")
    return _with_window(form, fields, _windowed(fields, layers) or tuple(i >= first for i in range(layers)))


def _gemma2(fields: _Fields, layers: int) -> ModelForm:
    form = _gemma(fields, attention_cap=_cap(fields, "attn_logit_softcapping", 50.0), logit_cap=30.0)
    windowed = _windowed(fields, layers) or tuple(i % 2 == 0 for i in range(layers))
    return _with_window(form, fields, windowed, 4096)


def _gemma3(fields: _Fields, layers: int) -> ModelForm:
    if fields.get("attn_logit_softcapping"):
        raise CheckpointError("config.json: attn_logit_softcapping is set, which is not supported")
    pattern = size(fields, "sliding_window_pattern", 6)
    windowed = _windowed(fields, layers) or tuple((i + 1) % pattern != 0 for i in range(layers))
    local = Rope(number(fields, "rope_local_base_freq", 10000.0))
    if _SLIDING in section(fields, "rope_parameters"):
        local = read_rope(fields, size(fields, "head_dim", 256), layers=_SLIDING)
    form = replace(_gemma(fields), head_norms=True, local_rope=local)
    return _with_window(form, fields, windowed, 4096)


def _gemma(fields: _Fields, attention_cap: float = 0.0, logit_cap: float = 0.0) -> ModelForm:
    biased = flag(fields, "attention_bias")
    # The models were trained with the factor in the embedding's own type.
    scale = torch.tensor(size(fields, "hidden_size") ** 0.5).bfloat16().item()
    return ModelForm(
        qkv_bias=biased,
        output_bias=biased,
        branch_norms=True,
        stored_less_one=True,
        activation="gelu_tanh",
        embed_scale=scale,
        attention_scale=number(fields, "query_pre_attn_scalar", 256.0) ** -0.5,
        attention_cap=attention_cap,
        logit_cap=_cap(fields, "final_logit_softcapping", logit_cap),
    )


def is_tied(fields: _Fields) -> bool:
    """Whether config.json says that the head is the embedding, which a Gemma's need not."""
    gemma = fields.get("model_type") in _GEMMA and fields.get("tie_word_embeddings") is None
    return gemma or flag(fields, "tie_word_embeddings")


def scales_embeddings(fields: _Fields) -> bool:
    """Whether the family multiplies embeddings before the first layer."""
    return fields.get("model_type") in _GEMMA


FAMILIES: Mapping[str, Callable[[_Fields, int], ModelForm]] = {
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
    "llama": _llama,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "mimo": _mimo,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
"""By `model_type`, what reads the form of a model with so many layers."""


def _windowed(fields: _Fields, layers: int) -> tuple[bool, ...] | None:
    """Which layers are of the sliding type, None where the file does not say."""
    types = layer_names(fields, "layer_types", layers, _LAYER_TYPES)
    return None if types is None else tuple(each == _SLIDING for each in types)


def _with_window(form: ModelForm, fields: _Fields, layers: tuple[bool, ...], default: int | None = None) -> ModelForm:
    """`form` with the window of the file in these layers, if there is one."""
    if fields.get("sliding_window") is None and default is None:
        return form
    return replace(form, window=size(fields, "sliding_window", default), window_layers=layers)


def _cap(fields: _Fields, name: str, default: float) -> float:
    """A soft bound: `default` where the field is missing, 0 where it is null."""
    return number(fields, name, 1.0) if fields.get(name) is not None else 0.0 if name in fields else default


def _refuse(fields: _Fields, form: ModelForm) -> None:
    """Raises CheckpointError for what the file asks for and the form has not."""
    gelu = form.activation == "gelu_tanh"
    name, known = ("hidden_activation", _GELU) if gelu else ("hidden_act", ("silu",))
    if fields.get(name) not in (None, *known):
        raise CheckpointError(f"config.json: {name} is {shown(fields[name])}, supported is {known[0]!r}")
    for name, has in (
        ("attention_bias", form.qkv_bias),
        ("mlp_bias", form.mlp_bias),
        ("use_sliding_window", bool(form.window_layers) and not form.interleaved),
        ("use_bidirectional_attention", False),
    ):
        if flag(fields, name) and not has:
            raise CheckpointError(f"config.json: {name} is set, which is not supported")
