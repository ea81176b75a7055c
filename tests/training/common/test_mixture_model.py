from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from training.common.mixture_model import MixtureLM, SparseMLP, balance
from training.common.model import initialise
from training.common.model_shape import MixtureShape
from training.demo_models.export import export, load
from training.demo_models.optim import Optimizer

SHAPE = MixtureShape(320, 96, 2, 3, 1, 32, 64, experts=4, experts_per_token=2)


@pytest.fixture
def mixture() -> MixtureLM:
    made = MixtureLM(SHAPE, torch.float32)
    initialise(made, 0)
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    return made


def test_transformers_computes_the_same_logits(mixture: MixtureLM, tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    export(mixture, tokenizer, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(reference).__name__ == "Qwen3MoeForCausalLM"
    tokens = torch.randint(0, 320, (2, 50), generator=torch.Generator().manual_seed(4))
    ours = load(tmp_path, torch.float32, "cpu")
    with torch.no_grad():
        assert torch.allclose(ours(tokens), reference(tokens).logits, atol=2e-4)
    assert ours.shape == mixture.shape


def test_parameter_counts(mixture: MixtureLM) -> None:
    assert sum(parameter.numel() for parameter in mixture.parameters()) == SHAPE.parameters
    one = sum(parameter.numel() for parameter in mixture.layers[0].mlp.experts[0].parameters())  # type: ignore[attr-defined, union-attr]
    assert SHAPE.parameters - SHAPE.active_parameters == SHAPE.layers * 2 * one


def test_a_token_is_computed_by_its_experts_alone(mixture: MixtureLM) -> None:
    mlp = mixture.layers[0].mlp
    assert isinstance(mlp, SparseMLP)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(2))
    weights, _ = mlp.route(x)
    assert torch.equal((weights > 0).sum(dim=-1), torch.full((5,), 2))
    assert torch.allclose(weights.sum(dim=-1), torch.ones(5))
    each = torch.stack([expert(x) for expert in mlp.experts], dim=1)
    assert torch.allclose(mlp(x), (weights[..., None] * each).sum(dim=1), atol=1e-5)


def test_balance_is_one_where_experts_are_equally_busy_and_grows_where_not() -> None:
    even = torch.full((8, 4), 0.25)
    assert balance(even, torch.eye(4).repeat(2, 1)) == pytest.approx(1.0)
    one = torch.tensor([[0.7, 0.1, 0.1, 0.1]]).repeat(8, 1)
    assert balance(one, torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(8, 1)) == pytest.approx(2.8)


def test_shares_and_balanced_logits_are_those_of_the_pass(mixture: MixtureLM) -> None:
    tokens = torch.randint(0, 320, (2, 30), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits, uneven = mixture.balanced(tokens)
        assert torch.allclose(logits, mixture(tokens), atol=1e-5)
    shares = mixture.shares(tokens)
    assert shares.shape == (2, 4) and torch.allclose(shares.sum(dim=1), torch.ones(2)) and uneven >= 0.9


def test_steps_reach_routers_and_experts(mixture: MixtureLM) -> None:
    tokens = torch.randint(0, 320, (2, 30), generator=torch.Generator().manual_seed(6))
    before = {name: parameter.detach().clone() for name, parameter in mixture.named_parameters()}
    logits, uneven = mixture.balanced(tokens)
    torch.autograd.backward(logits.square().mean() + uneven)
    Optimizer(mixture, 0.02, 0.003, 0.0).step(1.0)
    still = [name for name, parameter in mixture.named_parameters() if torch.equal(parameter, before[name])]
    assert not still
