"""Mixtures of experts, as config.json tells of them.

In the place of a layer's feed-forward network stand several, its experts, of which a router chooses some for each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, flag, number, shown, size
from slipstream_kernels.models.checkpoint.weight_file import open_weights, weight_files

_Fields = Mapping[str, Any]
_FUSED = (".mlp.experts.gate_up_proj", ".mlp.experts.gate_up_proj_blocks", ".feed_forward.experts.gate_up_proj")


@dataclass(frozen=True, slots=True)
class ExpertForm:
    """Experts of the layers that have them.

    count: of a layer. chosen: those that compute a row. size: the intermediate size of each. layers: which layers have
    experts; the others have a feed-forward network. normalised: the chosen experts' weights are their shares among
    themselves, by the softmax of their scores; else among all. shared_size: intermediate size of one more expert, which
    computes every row, weighed by a sigmoid; 0: there is none. biased: router and experts have biases. limit: experts
    gate by a clamped SwiGLU, see `slipstream_kernels.ops.experts.clamped_swiglu`; 0: by SiLU. weighs_inputs: an expert
    gets the row times the sigmoid of its score, and what experts say, the shared one too, is added as it is.
    """

    count: int
    chosen: int
    size: int
    layers: tuple[bool, ...]
    normalised: bool
    shared_size: int = 0
    biased: bool = False
    limit: float = 0.0
    weighs_inputs: bool = False

    def place_of(self, layer: int) -> int:
        """The place of a layer among those that have experts."""
        return sum(self.layers[:layer])

    @property
    def weighs_shared(self) -> bool:
        """Whether there is a shared expert that has a score of its own."""
        return self.shared_size > 0 and not self.weighs_inputs

    @property
    def scores(self) -> int:
        """What the router computes of a row: a score for each expert, and that of the shared one behind them."""
        return self.count + self.weighs_shared


def read_mixtral(fields: _Fields, layers: int) -> ExpertForm:
    """All layers have experts, of the model's intermediate size. Raises CheckpointError."""
    return _checked(
        ExpertForm(
            count=size(fields, "num_local_experts"),
            chosen=size(fields, "num_experts_per_tok"),
            size=size(fields, "intermediate_size"),
            layers=(True,) * layers,
            normalised=True,
        ),
        "num_local_experts",
    )


def read_gpt_oss(fields: _Fields, layers: int) -> ExpertForm:
    """All layers have experts, of the model's intermediate size. Raises CheckpointError."""
    return replace(read_mixtral(fields, layers), biased=True, limit=number(fields, "swiglu_limit", 7.0))


def read_qwen_experts(fields: _Fields, layers: int, *, shared: bool) -> ExpertForm | None:
    """None where no layer has experts. Raises CheckpointError."""
    step, plain = size(fields, "decoder_sparse_step", 1), _plain_layers(fields, layers)
    mixed = tuple(layer not in plain and (layer + 1) % step == 0 for layer in range(layers))
    # transformers 5 has saved the one name where earlier versions have the other.
    count = (
        "num_local_experts" if fields.get("num_experts") is None and "num_local_experts" in fields else "num_experts"
    )
    form = ExpertForm(
        count=size(fields, count),
        chosen=size(fields, "num_experts_per_tok"),
        size=size(fields, "moe_intermediate_size"),
        layers=mixed,
        normalised=flag(fields, "norm_topk_prob"),
        shared_size=size(fields, "shared_expert_intermediate_size") if shared else 0,
    )
    return _checked(form, count) if any(mixed) else None


def read_llama4_experts(fields: _Fields, layers: int) -> ExpertForm | None:
    """The shared expert is as large as the others. None where no layer has experts. Raises CheckpointError."""
    step, mixed = size(fields, "interleave_moe_layer_step", 1), _layers(fields, "moe_layers", layers)
    inner = size(fields, "intermediate_size")
    form = ExpertForm(
        count=size(fields, "num_local_experts", 16),
        chosen=size(fields, "num_experts_per_tok", 1),
        size=inner,
        layers=tuple((layer + 1) % step == 0 if mixed is None else layer in mixed for layer in range(layers)),
        normalised=False,
        shared_size=inner,
        weighs_inputs=True,
    )
    return _checked(form, "num_local_experts", "intermediate_size") if any(form.layers) else None


def _plain_layers(fields: _Fields, layers: int) -> frozenset[int]:
    """The layers of `mlp_only_layers`."""
    return _layers(fields, "mlp_only_layers", layers) or frozenset()


def _layers(fields: _Fields, name: str, layers: int) -> frozenset[int] | None:
    """The layers of a list; None where the field is missing or null."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < layers for each in value):
        raise CheckpointError(f"config.json: {name} is {shown(value)}, must be a list of layers from 0 to {layers - 1}")
    return frozenset(value)


def _checked(form: ExpertForm, count: str, inner: str = "moe_intermediate_size") -> ExpertForm:
    if form.chosen > form.count:
        raise CheckpointError(f"config.json: num_experts_per_tok is {form.chosen}, above {count}, {form.count}")
    sizes = {inner: form.size, "shared_expert_intermediate_size": form.shared_size}
    for name, value in sizes.items():
        if value % 16:
            raise CheckpointError(f"config.json: {name} is {value}, must be a multiple of 16")
    return form


def has_fused_experts(folder: Path) -> bool:
    """Whether each layer's experts are one tensor, as transformers 5 computes with them. Raises CheckpointError.

    A folder without weights in safetensors has none.
    """
    if not any((folder / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")):
        return False
    for path in weight_files(folder):
        with open_weights(path) as file:
            if any(name.endswith(_FUSED) for name in file.names):
                return True
    return False
