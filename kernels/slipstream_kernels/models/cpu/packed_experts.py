"""The weights of layers of experts as the passes on a CPU read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slipstream_kernels.jit.arrays import aligned
from slipstream_kernels.models.checkpoint.expert_names import PARTS, ROUTER, SHARED_GATE, expert_module
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.packed_matrix import Array, Packed, Records, Weight, dense, matrices_of, records_of
from slipstream_kernels.ops.linear import padded


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Of a model without experts all is empty.

    arrays: records of the routers, by their name in `forward.WEIGHTS`. records: of each layer with experts, of gate and
    up above one another and of down by turns. matrices, biases: what the records point to. widths: the widest that
    layers of experts write.
    """

    arrays: Mapping[str, Records]
    records: Mapping[int, Records]
    matrices: Sequence[Packed | None]
    biases: Sequence[Array]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, config: ModelConfig, weights: Mapping[str, Weight]) -> PackedExperts:
        """Weights by their names in a Hugging Face folder."""
        experts, layers = config.form.experts, range(config.num_layers)
        if experts is None:
            return cls({}, {}, (), (), ())
        routers = matrices_of(_router(config, weights, layer) for layer in layers)
        router, biases = records_of(routers), []
        records: dict[int, Records] = {}
        matrices = list(routers)
        modules = [
            [expert_module(expert, part) for part in parts]
            for expert in range(experts.count)
            for parts in (PARTS[:2], PARTS[2:])
        ]
        for layer in filter(config.has_experts, layers):
            packed = matrices_of(_named(weights, layer, each, "weight") for each in modules)
            matrices += packed
            records[layer] = records_of(packed)
            if experts.biased:
                added = [_bias(_named(weights, layer, each, "bias")) for each in ([ROUTER], *modules)]
                biases += added
                addresses = [bias.ctypes.data for bias in added]
                router["bias"][layer], records[layer]["bias"] = addresses[0], addresses[1:]
        return cls({"router": router}, records, matrices, biases, (2 * experts.size, experts.scores))


def of_networks(config: ModelConfig, weights: Mapping[str, Weight], parts: Sequence[str]) -> Iterator[list[Weight]]:
    """Parts of each layer's network that computes every row; nothing where its experts alone compute."""
    for layer in range(config.num_layers):
        network = "mlp.shared_expert" if config.has_experts(layer) else "mlp"
        there = parts if config.intermediate_of(layer) else ()
        yield _named(weights, layer, [f"{network}.{part}" for part in there], "weight")


def _router(config: ModelConfig, weights: Mapping[str, Weight], layer: int) -> list[Weight]:
    """What gives the scores of the experts, and behind them that of the shared one."""
    if not config.has_experts(layer):
        return []
    experts = config.form.experts
    assert experts is not None
    return _named(weights, layer, [ROUTER, SHARED_GATE] if experts.weighs_shared else [ROUTER], "weight")


def _named(weights: Mapping[str, Weight], layer: int, modules: Sequence[str], kind: str) -> list[Weight]:
    return [weights[f"model.layers.{layer}.{module}.{kind}"] for module in modules]


def _bias(parts: Sequence[Weight]) -> Array:
    """float32 of padded width."""
    bias = torch.cat([dense(part) for part in parts]).float().numpy()
    return aligned(np.pad(bias, (0, padded(len(bias)) - len(bias))))
