"""Matrices are moved as a whole by Muon, all else by AdamW; a run goes on where it stood."""

import pytest
import torch
from torch import nn

from training.fit.optimizer import Optimizer
from training.fit.settings import FitSettings

RATE = 0.01


class Some(nn.Module):
    """A matrix of states, rows of tokens, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.fc = nn.Linear(24, 8, bias=False)
        self.norm = nn.Parameter(torch.ones(8))
        self.lm_head = nn.Linear(8, 16, bias=False)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)

    def learn(self, optimizer: Optimizer, seed: int) -> None:
        """A step after gradients of ranks and sizes of all kinds."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 10 ** torch.randn(
                parameter.shape[:1] + (1,) * (parameter.ndim - 1), generator=generator
            )
        optimizer.step(RATE)


def test_muon_moves_matrices_alike_in_all_directions() -> None:
    module = Some()
    before = {name: each.detach().clone() for name, each in module.named_parameters()}
    module.learn(Optimizer(module, FitSettings(optimizer="muon", lr=RATE)), 5)
    moved = {name: each.detach() - before[name] for name, each in module.named_parameters()}
    sizes = torch.linalg.svdvals(moved["fc.weight"]) / (0.2 * 24**0.5 * RATE)
    assert sizes.min() > 0.4 and sizes.max() < 1.6
    for name in ("norm", "lm_head.weight"):  # the first step of Adam has one size for every number
        assert torch.allclose(moved[name].abs(), torch.full_like(moved[name], RATE), rtol=1e-2)


def test_adamw_moves_all_alike() -> None:
    module = Some()
    before = module.fc.weight.detach().clone()
    module.learn(Optimizer(module, FitSettings(lr=RATE)), 5)
    assert torch.allclose((module.fc.weight - before).abs(), torch.full_like(before, RATE), rtol=1e-2)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_it_goes_on_where_it_stood(name: str) -> None:
    settings = FitSettings(optimizer=name, lr=RATE, weight_decay=0.1)
    whole, cut = Some(), Some()
    optimizer, first = Optimizer(whole, settings), Optimizer(cut, settings)
    for seed in (1, 2):
        whole.learn(optimizer, seed)
    cut.learn(first, 1)
    second = Optimizer(cut, settings)
    second.restore(first.state())
    cut.learn(second, 2)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))


def test_frozen_ones_stay_and_gradients_go() -> None:
    module = Some()
    module.lm_head.weight.requires_grad_(False)
    optimizer = Optimizer(module, FitSettings(optimizer="muon"))
    assert [tuple(each.shape) for each in optimizer.parameters] == [(8,), (8, 24)]
    for each in optimizer.parameters:
        each.grad = torch.ones_like(each)
    optimizer.forget()
    assert all(each.grad is None for each in optimizer.parameters)


def test_unknown_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="optimizer is 'sgd'"):
        FitSettings(optimizer="sgd")
