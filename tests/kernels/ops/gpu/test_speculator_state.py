from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.speculator_state import speculator_state, speculator_state_reference


@pytest.mark.parametrize(("width", "chosen"), [(24, True), (32, False), (1200, True)])
def test_as_torch_has_it(width: int, chosen: bool, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(width)
    rows = None if not chosen else torch.tensor([2, 0, -1, 2], dtype=torch.int32, device=device)
    tokens = torch.tensor([5, 99, -1, 0], dtype=torch.int32, device=device)
    sums = torch.randn(4, width, generator=generator).to(device)
    table = torch.randn(9, width, generator=generator).bfloat16().to(device)
    gain, shift = torch.randn(2, width, generator=generator).bfloat16().to(device)
    out, wanted = torch.zeros(2, 4, width, dtype=torch.bfloat16, device=device)
    for op, target in ((speculator_state, out), (speculator_state_reference, wanted)):
        op(sums, rows, tokens, table, 1.7, gain, shift, 1e-6, target)
    torch.testing.assert_close(out, wanted, rtol=2**-7, atol=2e-6)
    source = 2 if chosen else 0
    x = sums[source] + 1.7 * table[5].float()
    x = torch.nn.functional.gelu(x / x.square().mean().sqrt() * gain + shift)
    torch.testing.assert_close(out[0].float(), x, rtol=2**-7, atol=1e-4)
