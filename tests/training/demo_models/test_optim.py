"""Muon's orthogonalisation and updates, and the schedule."""

import pytest
import torch
from torch import nn

from training.demo_models.optim import Muon, Optimizer, learning_rate_factor, orthogonalise


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 128, 64), (2, 64, 192)])
def test_orthogonalised_singular_values_are_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert float(values.median()) > 0.6 and float(values.max()) < 1.3


def test_orthogonalise_keeps_singular_vectors() -> None:
    u, _ = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(1)))
    v, _ = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(2)))
    matrix = u @ torch.diag(torch.linspace(0.5, 1.5, 32)) @ v.T
    inner = u.T @ orthogonalise(matrix[None])[0] @ v
    assert float((inner - torch.diag(inner.diagonal())).abs().max()) < 1e-3


def test_muon_step_is_scaled_decayed_and_clears_gradients() -> None:
    matrix = nn.Parameter(torch.ones(128, 64))
    matrix.grad = torch.randn(128, 64, generator=torch.Generator().manual_seed(3))
    gradient = matrix.grad.clone()
    Muon([matrix], weight_decay=0.5).step(lr=0.1)
    nesterov = gradient.lerp(gradient * 0.05, 0.95)
    expected = torch.ones(128, 64) * (1 - 0.05) - 0.1 * 2**0.5 * orthogonalise(nesterov[None])[0]
    assert torch.allclose(matrix.data, expected, atol=1e-5)
    assert matrix.grad is None


def test_optimizer_lowers_a_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = Optimizer(model, 0.02, 0.003, 0.0)
    inputs, wanted = torch.randn(64, 16), torch.randn(64, 4)
    losses = []
    for _ in range(80):
        loss = (model(inputs) - wanted).square().mean()
        loss.backward()
        optimizer.step(1.0)
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


def test_schedule_warms_up_stays_and_decays() -> None:
    factors = [learning_rate_factor(step, 100, 10, 60) for step in range(100)]
    assert factors[0] == pytest.approx(0.1) and factors[9] == 1.0
    assert all(factor == 1.0 for factor in factors[9:61])
    assert factors[80] == pytest.approx(0.5) and factors[99] == pytest.approx(1 / 40)
