from __future__ import annotations

import torch

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter
from slipstream_kernels.models.gpu.parallel.adapter_broadcast import AdapterMessage
from slipstream_kernels.ops.lora.lora_weight import LoraWeight


def test_bytes_hold_everything() -> None:
    generator = torch.Generator().manual_seed(0)

    def weight(rank: int, inputs: int, outputs: int, scale: float) -> LoraWeight:
        a, b = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((inputs, rank), (outputs, rank)))
        return LoraWeight(a.T, b, scale)  # in any order in memory

    weights = {"model.layers.0.q": weight(3, 16, 5, 2.0), "model.layers.1.\u00fc": weight(1, 7, 2, 1 / 3)}
    message = AdapterMessage(4, 10**12, LoraAdapter(weights, 3, "ab" * 32))
    found = AdapterMessage.from_bytes(message.to_bytes())
    assert (found.slot, found.launched, found.adapter.rank, found.adapter.fingerprint) == (4, 10**12, 3, "ab" * 32)
    assert list(found.adapter.weights) == list(weights)
    for name, expected in weights.items():
        one = found.adapter.weights[name]
        assert one.scale == expected.scale
        for tensor, wanted in ((one.a, expected.a), (one.b, expected.b)):
            assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, wanted)
