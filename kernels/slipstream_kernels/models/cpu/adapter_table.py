"""LoRA adapters as the passes on a CPU read them: a record for each slot, layer and matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter, adaptable_modules
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.adapter_layers import LORA, MATRICES
from slipstream_kernels.ops.linear import ROW_GROUP
from slipstream_kernels.ops.lora.add_lora import PackedLora, pack_lora, packed_lora_bytes


@dataclass(frozen=True, slots=True, eq=False)
class PackedAdapter:
    """By (layer, place in `forward.MATRICES`); matrices without an entry are as in the model."""

    layers: Mapping[tuple[int, int], PackedLora]

    @property
    def width(self) -> int:
        """The widest of the padded ranks."""
        return max((packed.rank for packed in self.layers.values()), default=0)

    @property
    def nbytes(self) -> int:
        return sum(packed.nbytes for packed in self.layers.values())


def pack_adapter(config: ModelConfig, adapter: LoraAdapter) -> PackedAdapter:
    """To be called from any thread: nothing of a model is read but its config."""
    layers = {}
    for layer in range(config.num_layers):
        for place, parts in enumerate(_parts(config)):
            weights = [(outputs, adapter.weights.get(f"model.layers.{layer}.{module}")) for module, outputs in parts]
            packed = pack_lora(weights)
            if packed is not None:
                layers[layer, place] = packed
    return PackedAdapter(layers)


def most_adapter_bytes(config: ModelConfig, rank: int) -> int:
    """What `pack_adapter` takes at most for an adapter whose ranks are at most `rank`."""
    modules, size = adaptable_modules(config), 0
    for layer in range(config.num_layers):
        for parts in _parts(config):
            inputs = [modules[name][1] for module, _ in parts if (name := f"model.layers.{layer}.{module}") in modules]
            if inputs:
                size += packed_lora_bytes(inputs[0], sum(outputs for _, outputs in parts), len(inputs) * rank)
    return size


def _parts(config: ModelConfig) -> Sequence[Sequence[tuple[str, int]]]:
    """Modules and outputs of each of `MATRICES`, above one another."""
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv = [("self_attn.q_proj", config.q_size), *((f"self_attn.{name}_proj", config.kv_size) for name in "kv")]
    gate_up = [("mlp.gate_proj", inner), ("mlp.up_proj", inner)]
    parts = {"qkv": qkv, "o": [("self_attn.o_proj", hidden)], "gate_up": gate_up, "down": [("mlp.down_proj", hidden)]}
    return [parts[name] for name in MATRICES]


class AdapterTable:
    """What slots hold. Written between passes, by the thread that runs them."""

    __slots__ = ("_held", "_layers", "loaded", "records")

    def __init__(self, layers: int, slots: int = 0) -> None:
        self._layers = layers
        self._held: dict[int, PackedAdapter] = {}
        self.records = np.zeros((slots, layers, len(MATRICES)), LORA)
        self.loaded = np.zeros(slots, np.bool_)

    @property
    def width(self) -> int:
        """Floats that a row needs between A and B."""
        return max((adapter.width for adapter in self._held.values()), default=0)

    def install(self, slot: int, adapter: PackedAdapter) -> None:
        """Fill a slot that is free. Raises ValueError for one that is not, or that there is not."""
        if not 0 <= slot < len(self.loaded) or self.loaded[slot]:
            raise ValueError(f"adapter slot {slot} of {len(self.loaded)} is taken or does not exist")
        for (layer, place), packed in adapter.layers.items():
            record = self.records[slot, layer, place]
            record["a"], record["b"] = packed.a.ctypes.data, packed.b.ctypes.data
            record["scales"], record["rank"] = packed.scales.ctypes.data, packed.rank
        self._held[slot] = adapter
        self.loaded[slot] = True

    def remove(self, slot: int) -> None:
        """Free a slot, of which no row makes use any more."""
        del self._held[slot]
        self.loaded[slot] = False
        self.records[slot] = np.zeros((), LORA)


@kernel
def adapter_spans(adapters: npt.NDArray[np.int32], spans: npt.NDArray[np.int32]) -> int:
    """Cut the rows that have an adapter, by runs of one: (first row, rows, slot) into `spans`; how many there are."""
    count = row = 0
    rows = len(adapters)
    while row < rows:
        slot, end = adapters[row], row + 1
        while end < rows and adapters[end] == slot and end - row < ROW_GROUP:
            end += 1
        if slot >= 0:
            spans[count, 0], spans[count, 1], spans[count, 2] = row, end - row, slot
            count += 1
        row = end
    return count
