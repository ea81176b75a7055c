"""Which layers keep their quantised weights packed on a GPU, and how a layer of several modules becomes one weight."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.tensor_names import stored_name
from slipstream_kernels.models.checkpoint.tied_head import HEAD as HEAD_WEIGHT
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Form
from slipstream_kernels.ops.gpu.packed.packed_linear import room_elements
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedForm, can_pack

HEAD = "head"
LAYERS = ("qkv", "o", "gate_up", "down")


def shape_of(shard: Shard, name: str, layer: int) -> tuple[int, int]:
    """[N, K] of a layer's weight, or of the head, on a rank."""
    hidden, intermediate = shard.config.hidden_size, shard.intermediate_of(layer)
    return {
        "qkv": (shard.qkv_size, hidden),
        "o": (hidden, shard.q_size),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
        HEAD: (shard.vocab_size, hidden),
    }[name]


def packed_form(shard: Shard, name: str, layer: int = 0) -> PackedForm | Fp8Form | None:
    """How a layer's weight, or the head, lies on a rank; None: in bfloat16.

    In bfloat16 are layers whose modules differ in the numbers that they are quantised to, or of which not all are;
    whose groups do not divide one another; of columns that kernels do not take; and those of which a rank's columns
    would begin within a group.
    """
    config = shard.config
    if config.quantisation is None or (name == HEAD and config.tie_word_embeddings):
        return None
    schemes = [config.quantisation.scheme_of(module) for module in _modules(config, name, layer)]
    known = [scheme for scheme in schemes if scheme is not None]
    if not known or len(known) < len(schemes) or len({scheme.number for scheme in known}) > 1:
        return None
    outputs, inputs = shape_of(shard, name, layer)
    whole = inputs * shard.size if name in ("o", "down") else inputs
    groups = [min(scheme.group_of(whole), whole) for scheme in known]
    group = min(groups)
    if any(each % group and each < whole for each in groups) or (group < whole and inputs % group and inputs < whole):
        return None
    number = known[0].number
    if not can_pack(number, inputs, group):
        return None
    if config.quantisation.fp8_activations and number == "e4m3" and name != HEAD:
        assert group >= inputs  # what has other scales is refused before
        return Fp8Form(outputs, inputs)
    zeros = any(not scheme.symmetric for scheme in known)
    return PackedForm(number, outputs, inputs, group if group < inputs else 0, zeros)


def decoded_layers(shard: Shard) -> list[str]:
    """Names of layers that hold quantised weights in bfloat16."""
    if shard.config.quantisation is None:
        return []
    return [
        f"layer {layer} {name}" if name != HEAD else name
        for name, layer in _all(shard.config)
        if packed_form(shard, name, layer) is None and _is_quantised(shard.config, name, layer)
    ]


def _is_quantised(config: ModelConfig, name: str, layer: int) -> bool:
    """Whether any of a layer's modules is."""
    assert config.quantisation is not None
    return any(config.quantisation.scheme_of(module) is not None for module in _modules(config, name, layer))


def room_size(shard: Shard) -> int:
    """Elements of bfloat16 in which each packed layer, and a part of a packed head, can be decoded."""
    sizes = [0]
    for name, layer in _all(shard.config):
        form = packed_form(shard, name, layer)
        if isinstance(form, PackedForm):
            shape = form.outputs, form.inputs
            sizes.append(room_elements(shape) if name == HEAD else form.outputs * form.inputs)
    return max(sizes)


def _all(config: ModelConfig) -> list[tuple[str, int]]:
    layers = ((name, layer) for layer in range(config.num_layers) for name in LAYERS)
    return [*((name, layer) for name, layer in layers if _modules(config, name, layer)), (HEAD, 0)]


def _modules(config: ModelConfig, name: str, layer: int) -> Sequence[str]:
    """As the folder calls them."""
    if name == HEAD:
        return (stored_name(config, HEAD_WEIGHT).removesuffix(".weight"),)
    if name in ("gate_up", "down") and not config.intermediate_of(layer):
        return ()
    network = "mlp.shared_expert" if config.has_experts(layer) else "mlp"
    parts = {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "o": ("self_attn.o_proj",),
        "gate_up": (f"{network}.gate_proj", f"{network}.up_proj"),
        "down": (f"{network}.down_proj",),
    }[name]
    names = (stored_name(config, f"model.layers.{layer}.{part}.weight") for part in parts)
    return [each.removesuffix(".weight") for each in names]
