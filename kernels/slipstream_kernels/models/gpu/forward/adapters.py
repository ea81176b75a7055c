"""LoRA adapters on a device: slots of fixed size, which passes read by the adapter of each row's request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from slipstream_kernels.models.checkpoint.adapter.pace import Pace
from slipstream_kernels.models.gpu.batch.device_plan import PlanArrays
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops
from slipstream_kernels.models.gpu.forward.packed_layers import LAYERS, shape_of
from slipstream_kernels.models.gpu.forward.weight_places import part_of
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.fp8_linear.fp8_ops import LayerInput
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows
from slipstream_kernels.ops.gpu.lora.expand import ExpandTiles
from slipstream_kernels.ops.gpu.packed.any_linear import LayerWeight
from slipstream_kernels.ops.lora.lora_weight import LoraWeight

_ALIGNMENT = 8
"""Of ranks: rows of 16 bytes."""
_FEW_ROWS, _SMALL, _LARGE = 256, 16, 64
"""Rows up to which blocks of them are small, and the sizes of blocks: no matter of bits."""


@dataclass(frozen=True, slots=True)
class LayerAdapters:
    """Of one linear layer, all slots: bfloat16 a [slots, parts * rank, inputs] and b [slots, outputs, rank], and
    float32 scales [slots, parts * rank]. What an adapter lacks is zero.
    """

    a: torch.Tensor
    b: torch.Tensor
    scales: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes + self.scales.nbytes


class Shrunk(NamedTuple):
    """Operands of `expand`: first products of a layer's adapters, bfloat16 [rows, parts * rank], and what they meet."""

    x: torch.Tensor
    b: torch.Tensor
    tiles: ExpandTiles
    rows: AdapterRows


class GpuAdapters:
    """Slots are written by any thread, each only while no request names it; passes are queued by one.

    A rank has what its part of each layer needs: where it computes a part of the outputs, that part of B and all of A,
    and where it has a part of the inputs, that part of A and all of B, so that what it adds is part of the ranks' sum.
    """

    def __init__(self, shard: Shard, limits: GpuLimits, device: torch.device | str) -> None:
        """Takes all memory that there will be. `limits` have one adapter or more."""
        self._shard = shard
        self._slots = slots = limits.max_adapters
        self._rank = rank = -(-limits.max_adapter_rank // _ALIGNMENT) * _ALIGNMENT
        self._parts = _parts(shard)
        parts = {name: tuple(modules.values()) for name, modules in self._parts.items()}
        self._tiles = {name: ExpandTiles.of(parts[name], device, grouped=name == "gate_up") for name in LAYERS}

        def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        def layer(name: str, index: int) -> LayerAdapters:
            (outputs, inputs), ranks = shape_of(shard, name, index), len(parts[name]) * rank
            scales = empty(slots, ranks, dtype=torch.float32)
            return LayerAdapters(empty(slots, ranks, inputs), empty(slots, outputs, rank), scales)

        self._layers = [
            {name: layer(name, index) for name in _adapted(shard, index)} for index in range(shard.config.num_layers)
        ]
        self._shrunk = empty(limits.max_rows * max(map(len, parts.values())) * rank)
        self._rows = {
            size: AdapterRows.empty(rows, slots, size, device)
            for size, rows in ((_SMALL, min(limits.max_rows, _FEW_ROWS)), (_LARGE, limits.max_rows))
        }
        self._device = self._shrunk.device
        self._copies = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        largest = max(each.nbytes // slots for layer in self._layers for each in layer.values())
        self._staging = torch.empty(largest, dtype=torch.uint8, pin_memory=self._copies is not None)
        self._freed: dict[int, torch.cuda.Event] = {}

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        total = self._shrunk.nbytes + sum(each.nbytes for layer in self._layers for each in layer.values())
        total += sum(tiles.tiles.nbytes for tiles in self._tiles.values())
        return total + sum(rows.nbytes for rows in self._rows.values())

    def write(self, slot: int, adapter: LoraAdapter) -> None:
        """Fill a slot that no request names; blocks until the device has it. Steps go on meanwhile.

        Raises ValueError for a rank beyond the limit.
        """
        if adapter.rank > self._rank:
            raise ValueError(f"the adapter's rank is {adapter.rank}, the limit is {self._rank}")
        if self._copies is None:
            self._copy(slot, adapter)
            return
        with torch.cuda.stream(self._copies):
            if (freed := self._freed.pop(slot, None)) is not None:
                self._copies.wait_event(freed)
            self._copy(slot, adapter)
        self._copies.synchronize()

    def free(self, slot: int, stream: torch.cuda.Stream | None) -> None:
        """No request names the slot any more; what is queued on the stream of passes may still read it."""
        if stream is not None:
            self._freed[slot] = stream.record_event()

    def gather(self, plan: PlanArrays[torch.Tensor], line_adapters: torch.Tensor, ops: Ops) -> AdapterRows:
        """In front of a pass's layers: its rows by adapter. `line_adapters` int32 [lines]."""
        rows = self._of(len(plan.lines))
        ops.gather_adapter_rows(plan.lines, plan.write_slots, line_adapters, self._slots, rows)
        return rows

    def linear(
        self,
        index: int,
        name: str,
        x: LayerInput,
        weight: LayerWeight,
        out: torch.Tensor,
        rows: AdapterRows,
        ops: Ops,
        **addends: Any,
    ) -> Shrunk:
        """A layer, and what is to be expanded and added to its output before anything is made of it.

        `addends` are those of `linear`. What is returned holds until the next layer.
        """
        layer = self._layers[index][name]
        ranks = layer.scales.shape[1]
        shrunk = self._shrunk[: len(x) * ranks].view(len(x), ranks)
        gated = name == "gate_up"
        ops.shrinking_linear(x, weight, out, layer.a, layer.scales, rows, shrunk, gated=gated, **addends)
        return Shrunk(shrunk, layer.b, self._tiles[name], rows)

    def _of(self, count: int) -> AdapterRows:
        """The blocks of a pass of so many rows."""
        return self._rows[_SMALL if count <= _FEW_ROWS else _LARGE].of(count)

    def _copy(self, slot: int, adapter: LoraAdapter) -> None:
        pace = Pace()
        for index, layer in enumerate(self._layers):
            for name, target in layer.items():
                self._copy_layer(slot, index, name, target, adapter)
                pace.add(target.nbytes // self._slots)

    def _copy_layer(self, slot: int, index: int, name: str, target: LayerAdapters, adapter: LoraAdapter) -> None:
        """By way of pinned memory, whole: a copy from any other would have the launch of a pass wait for it.

        That is filled by numpy, on this thread alone: torch has all cores copy, beside which the loop's thread waits.
        """
        places = [each[slot] for each in (target.a, target.b, target.scales)]
        staged = self._staging[: sum(each.nbytes for each in places)]
        staged.numpy().fill(0)
        parts = staged.split([each.nbytes for each in places])
        host = [part.view(each.dtype).view(each.shape) for part, each in zip(parts, places, strict=True)]
        a, b, scales = host[0].view(torch.int16).numpy(), host[1].view(torch.int16).numpy(), host[2].numpy()
        first = 0
        for part, (module, outputs) in enumerate(self._parts[name].items()):
            weight = adapter.weights.get(f"model.layers.{index}.{module}")
            if weight is not None:
                own_a, own_b = (each.view(torch.int16).numpy() for each in _own(weight, name, self._shard))
                start, end = part * self._rank, part * self._rank + weight.rank
                a[start:end] = own_a
                b[first : first + outputs, : weight.rank] = own_b
                scales[start:end] = weight.scale
            first += outputs
        for place, each in zip(places, host, strict=True):
            place.copy_(each, non_blocking=True)
        if self._copies is not None:
            self._copies.synchronize()


def _adapted(shard: Shard, layer: int) -> Sequence[str]:
    """Linear layers of a layer that have adapters: those in the place of a feed-forward network have none."""
    return [name for name in LAYERS if name in ("qkv", "o") or not shard.config.has_experts(layer)]


def _own(weight: LoraWeight, name: str, shard: Shard) -> tuple[torch.Tensor, torch.Tensor]:
    """What of a module's A and B is the rank's, as the layer's weight is shared."""
    if name in ("o", "down"):
        return part_of(weight.a, 1, shard), weight.b
    return weight.a, part_of(weight.b, 0, shard)


def _parts(shard: Shard) -> Mapping[str, Mapping[str, int]]:
    """Modules of each layer and their outputs on the rank, above one another in b."""
    hidden, inner = shard.config.hidden_size, shard.config.intermediate_size // shard.size
    return {
        "qkv": {
            "self_attn.q_proj": shard.q_size, "self_attn.k_proj": shard.kv_size, "self_attn.v_proj": shard.kv_size,
        },
        "o": {"self_attn.o_proj": hidden},
        "gate_up": {"mlp.gate_proj": inner, "mlp.up_proj": inner},
        "down": {"mlp.down_proj": hidden},
    }  # fmt: skip
