"""The kernels and their twins say the same of a chain."""

from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.chain_rows import derive_chain, merge_chain
from training.fit.attention import derive_plainly, merge_plainly

ROWS, PLACES, DIM = 5, 9, 16


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (4, 2)])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_kernels_equal_their_twins(heads: int, kv_heads: int, steps: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(steps)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    query, grad, out, of_text = (make(n, heads, DIM) for n in (ROWS, ROWS, PLACES, PLACES))
    keys, values = (2 * make(steps, ROWS, kv_heads, DIM) for _ in range(2))
    ends, places = make(PLACES, heads), torch.tensor([7, 0, 3, 8, 4], device=device)
    found = []
    for merge, derive in ((merge_plainly, derive_plainly), (merge_chain, derive_chain)):
        seen, normalisers = out.clone(), ends.clone()
        merged = merge(query, keys, values, places, seen, normalisers)
        grads = derive(grad, merged, query, keys, values, places, normalisers, of_text)
        found.append((merged, seen, normalisers, *grads))
    for plain, kernels in zip(*found, strict=True):
        assert plain.shape == kernels.shape and torch.allclose(plain, kernels, atol=2e-5)
    assert not torch.equal(found[1][1], out)
