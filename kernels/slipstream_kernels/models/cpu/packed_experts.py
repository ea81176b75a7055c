"""The weights of layers of experts as the passes on a CPU read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipstream_kernels.models.checkpoint.expert_names import PARTS, ROUTER, SHARED_GATE, expert_module
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.packed_matrix import Array, Packed, Weight, matrices_of, records_of


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Of a model without experts all is empty.

    matrices: the routers, None of layers without experts, by their name in `forward.WEIGHTS`. of_layers: of each layer
    with experts gate and up above one another, and down, by turns. records: what kernels know these by. widths: the
    widest that layers of experts write.
    """

    matrices: Mapping[str, Sequence[Packed | None]]
    of_layers: Mapping[int, Sequence[Packed | None]]
    records: Mapping[int, Array]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, config: ModelConfig, weights: Mapping[str, Weight]) -> PackedExperts:
        """Weights by their names in a Hugging Face folder."""
        experts = config.form.experts
        if experts is None:
            return cls({}, {}, {}, ())
        layers = range(config.num_layers)
        routers = matrices_of(list(_router(config, weights, layer)) for layer in layers)
        of_layers = {
            layer: matrices_of(_experts(weights, layer, experts.count)) for layer in layers if config.has_experts(layer)
        }
        records = {layer: records_of(packed) for layer, packed in of_layers.items()}
        return cls({"router": routers}, of_layers, records, (2 * experts.size, experts.scores))


def of_networks(config: ModelConfig, weights: Mapping[str, Weight], parts: Sequence[str]) -> Iterator[list[Weight]]:
    """Parts of each layer's network that computes every row; nothing where its experts alone compute."""
    for layer in range(config.num_layers):
        module = "mlp.shared_expert" if config.has_experts(layer) else "mlp"
        there = parts if config.intermediate_of(layer) else ()
        yield [weights[f"model.layers.{layer}.{module}.{part}.weight"] for part in there]


def _router(config: ModelConfig, weights: Mapping[str, Weight], layer: int) -> Iterator[Weight]:
    """What gives the scores of the experts, and behind them that of the shared one."""
    if config.has_experts(layer):
        yield weights[f"model.layers.{layer}.{ROUTER}.weight"]
        if config.intermediate_of(layer):
            yield weights[f"model.layers.{layer}.{SHARED_GATE}.weight"]


def _experts(weights: Mapping[str, Weight], layer: int, count: int) -> Iterator[list[Weight]]:
    for expert in range(count):
        for parts in (PARTS[:2], PARTS[2:]):
            yield [weights[f"model.layers.{layer}.{expert_module(expert, part)}.weight"] for part in parts]
