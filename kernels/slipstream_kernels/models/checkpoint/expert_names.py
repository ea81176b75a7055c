"""Tensors of experts by name: as folders store them, and as they are computed with, one module an expert.

Four layouts are known: modules of an expert named as those of a feed-forward network (Qwen), the same named by numbers
(Mixtral), one tensor for all experts of a layer (transformers 5), and that of `gpt_oss_names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch

from slipstream_kernels.models.checkpoint.gpt_oss_names import gpt_oss_parts, gpt_oss_shapes, stored_gpt_oss_name
from slipstream_kernels.models.checkpoint.llama4_names import LLAMA4_ROUTER
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.ops.quantised_weight import QuantisedWeight

ROUTER, SHARED_GATE = "mlp.gate", "mlp.shared_expert_gate"
PARTS = ("gate_proj", "up_proj", "down_proj")
"""Of an expert, in this order."""
_ROUTERS = (
    ".mlp.gate.weight",
    ".block_sparse_moe.gate.weight",
    ".mlp.router.weight",
    ".shared_expert_gate.weight",
    LLAMA4_ROUTER,
)
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_EXPERT = re.compile(r"(.*\.)mlp\.experts\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
_FUSED = re.compile(r".*\.mlp\.experts\.(gate_up_proj|down_proj)")

Weight = torch.Tensor | QuantisedWeight
Shapes = Iterator[tuple[str, tuple[int, ...]]]
Projections = Iterator[tuple[str, tuple[int, int], bool]]


def is_router(stored: str) -> bool:
    """Whether a tensor of a folder is a weight that gives experts their scores."""
    return stored.endswith(_ROUTERS)


def expert_module(expert: int, part: str) -> str:
    """One of an expert's `PARTS`, within its layer."""
    return f"mlp.experts.{expert}.{part}"


def expert_projections(config: ModelConfig) -> Projections:
    """Of a layer of experts: name, (outputs, inputs), whether there is a bias."""
    experts, hidden = config.form.experts, config.hidden_size
    assert experts is not None
    yield ROUTER, (experts.count, hidden), experts.biased
    for expert in range(experts.count):
        for part in PARTS:
            shape = (hidden, experts.size) if part == "down_proj" else (experts.size, hidden)
            yield expert_module(expert, part), shape, experts.biased
    if experts.shared_size:
        for part in PARTS:
            shape = (hidden, experts.shared_size) if part == "down_proj" else (experts.shared_size, hidden)
            yield f"mlp.shared_expert.{part}", shape, False
    if experts.weighs_shared:
        yield SHARED_GATE, (1, hidden), False


def stored_expert_name(config: ModelConfig, name: str) -> str:
    """What the tensor of the folder is called that holds one of a layer of experts, or any other tensor."""
    if config.family == "gpt_oss":
        return stored_gpt_oss_name(name, packed=config.packed_experts)
    found = _EXPERT.fullmatch(name)
    if config.fused_experts:
        if found is None:
            return name
        prefix, _, part = found.groups()
        return f"{prefix}mlp.experts.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"
    if config.family != "mixtral":
        return name
    if found is not None:
        prefix, expert, part = found.groups()
        return f"{prefix}block_sparse_moe.experts.{expert}.{_MIXTRAL[part]}.weight"
    return name.replace(f".{ROUTER}.", ".block_sparse_moe.gate.")


def stored_expert_shapes(config: ModelConfig, stored: str, shape: tuple[int, ...]) -> Shapes:
    """Name and shape of the tensors of the folder whose parts above one another have this shape."""
    experts = config.form.experts
    assert experts is not None
    if config.family == "gpt_oss":
        yield from gpt_oss_shapes(stored, shape, experts.count)
    elif config.fused_experts and _FUSED.fullmatch(stored):
        yield stored, (experts.count, shape[0] // experts.count, *shape[1:])
    else:
        yield stored, shape


def computed_experts(
    config: ModelConfig, stored: str, tensor: Weight | Sequence[QuantisedWeight]
) -> Iterator[tuple[str, Weight]]:
    """Name and tensor of what a tensor of the folder holds; of packed experts the weights of all are given."""
    if config.family == "gpt_oss":
        assert not isinstance(tensor, QuantisedWeight)
        yield from gpt_oss_parts(stored, tensor)
    elif isinstance(tensor, torch.Tensor) and _FUSED.fullmatch(stored):
        yield from _fused_parts(stored, tensor)
    else:
        assert isinstance(tensor, torch.Tensor | QuantisedWeight)
        yield _computed_name(config, stored), tensor


def _fused_parts(stored: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    prefix, _, part = stored.rpartition(".")
    for expert, weight in enumerate(tensor):
        if part == "down_proj":
            yield f"{prefix}.{expert}.down_proj.weight", weight
        else:
            for name, half in zip(PARTS[:2], weight.chunk(2), strict=True):
                yield f"{prefix}.{expert}.{name}.weight", half


def _computed_name(config: ModelConfig, stored: str) -> str:
    if config.family != "mixtral" or config.fused_experts:
        return stored
    for part, number in _MIXTRAL.items():
        stored = stored.replace(f".{number}.weight", f".{part}.weight")
    return stored.replace(".block_sparse_moe.", ".mlp.")
