"""Embedding and state side by side."""

import pytest
import torch

from slipstream_kernels.ops.gpu.eagle_input import join_rows, join_rows_reference


@pytest.mark.parametrize(("hidden", "width"), [(48, 48), (64, 96)])
@pytest.mark.parametrize("normed", [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("residual", [None, False, True])
def test_is_the_twin(hidden, width, normed, chosen, residual, device):
    generator = torch.Generator().manual_seed(hidden + width)

    def normal(*size):
        return torch.randn(size, generator=generator).bfloat16().to(device)

    table, states = normal(9, hidden), normal(7, 2 * width)[:, :width]
    norms = normal(hidden) if normed[0] else None, normal(width) if normed[1] else None
    tokens = torch.tensor([0, 8, 3, 200, -5], dtype=torch.int32, device=device)
    rows = torch.tensor([6, -1, 2, 2, 0], dtype=torch.int32, device=device) if chosen else None
    outputs = []
    for op in (join_rows, join_rows_reference):
        joined = torch.zeros(5, hidden + width, dtype=torch.bfloat16, device=device)
        stream = None if residual is None else torch.zeros(5, width, dtype=torch.bfloat16, device=device)
        op(tokens, table, norms[0], states, rows, norms[1], 1e-5, joined, stream, residual_normed=bool(residual))
        outputs.append((joined, stream))
    (joined, stream), (wanted, wanted_stream) = outputs
    torch.testing.assert_close(joined, wanted, rtol=2**-7, atol=0)
    assert joined.any(dim=1).all()
    if residual is not None:
        torch.testing.assert_close(stream, wanted_stream, rtol=2**-7, atol=0)
        assert torch.equal(stream, joined[:, hidden:]) == (residual or not normed[1])
