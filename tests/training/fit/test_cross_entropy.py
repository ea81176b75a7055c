"""The fused loss and its gradients are those of plain torch, in as many chunks as it takes."""

import pytest
import torch

from training.fit import cross_entropy
from training.fit.cross_entropy import soft_cross_entropy


@pytest.mark.parametrize("chunk_rows", [3, 1000])
def test_loss_and_gradients_are_torchs(chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cross_entropy._CHUNK_BYTES, "cpu", chunk_rows * 4 * 40)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 8, generator=generator, requires_grad=True)
    weight = torch.randn(40, 8, generator=generator, requires_grad=True)
    wanted = torch.randn(6, 40, generator=generator).softmax(-1)
    places = torch.randint(0, 6, (20,), generator=generator)
    row_weights = torch.rand(20, generator=generator) * (torch.arange(20) % 3 > 0)
    total, losses, best = soft_cross_entropy(x, weight, wanted, places, row_weights)
    logits = x @ weight.T
    plain = -(wanted[places] * logits.log_softmax(-1)).sum(-1)
    assert torch.allclose(losses, plain, atol=1e-5)
    assert torch.equal(best, logits.argmax(-1))
    for fused, expected in zip(
        torch.autograd.grad(2 * total, (x, weight)),
        torch.autograd.grad(2 * (plain * row_weights).sum(), (x, weight)),
        strict=True,
    ):
        assert torch.allclose(fused, expected, atol=1e-5)


def test_frozen_scores_get_no_gradient() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    total, _, _ = soft_cross_entropy(
        x, torch.randn(9, 8), torch.full((1, 9), 1 / 9), torch.zeros(4).long(), torch.ones(4)
    )
    total.backward()
    assert x.grad is not None and float(x.grad.abs().sum()) > 0
    with torch.no_grad():
        measured, _, _ = soft_cross_entropy(
            x, torch.randn(9, 8), torch.full((1, 9), 1 / 9), torch.zeros(4).long(), torch.ones(4)
        )
    assert not measured.requires_grad
