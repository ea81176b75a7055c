"""What rank 0 tells the other ranks of a model for each LoRA adapter: all of its weights, and when a slot is free."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from slipstream_kernels.ops.lora.lora_weight import LoraWeight

_LENGTH = 8


@dataclass(frozen=True, slots=True, eq=False)
class AdapterMessage:
    """`launched` passes were launched before: no later one reads what the slot holds until it is written.

    As bytes: the length of the head, the head in JSON, and each module's A and B in its order.
    """

    slot: int
    launched: int
    adapter: LoraAdapter

    def to_bytes(self) -> bytes:
        adapter = self.adapter
        modules = [(name, *weight.b.shape, weight.a.shape[1], weight.scale) for name, weight in adapter.weights.items()]
        head = json.dumps([self.slot, self.launched, adapter.rank, adapter.fingerprint, modules]).encode()
        tensors = (tensor for weight in adapter.weights.values() for tensor in (weight.a, weight.b))
        content = [tensor.contiguous().view(torch.uint8).numpy().data for tensor in tensors]
        return b"".join([len(head).to_bytes(_LENGTH, "little"), head, *content])

    @classmethod
    def from_bytes(cls, content: bytes) -> AdapterMessage:
        end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
        slot, launched, rank, fingerprint, modules = json.loads(content[_LENGTH:end])
        sizes = [size for _, outputs, own, inputs, _ in modules for size in (own * inputs, outputs * own)]
        parts = iter(torch.frombuffer(bytearray(content[end:]), dtype=torch.bfloat16).split(sizes))
        weights = {
            name: LoraWeight(next(parts).view(own, inputs), next(parts).view(outputs, own), scale)
            for name, outputs, own, inputs, scale in modules
        }
        return cls(slot, launched, LoraAdapter(weights, rank, fingerprint))
