"""Alignment trains both models; the projected embedding keeps its directions."""

import torch

from training.common.model import CausalLM, initialise
from training.common.model_shape import ModelShape
from training.demo_models.distill import project_embedding
from training.demo_models.losses import alignment_loss


def small_draft() -> CausalLM:
    draft = CausalLM(ModelShape(320, 64, 1, 1, 1, 64, 64), torch.float32)
    initialise(draft, 3)
    return draft


def test_alignment_reaches_both_models(model: CausalLM) -> None:
    model.requires_grad_(True)
    draft = small_draft()
    tokens = torch.randint(0, 320, (2, 20), generator=torch.Generator().manual_seed(5))
    plain, nats = alignment_loss(model, draft, tokens, tokens, torch.ones(2, 20), None, 0.0)
    assert torch.allclose(plain.detach(), nats)
    loss, _ = alignment_loss(model, draft, tokens, tokens, torch.ones(2, 20), None, 0.5)
    assert float(loss.detach()) > float(nats)
    torch.autograd.backward(loss)
    for either in (model, draft):
        gradient = either.model.embed_tokens.weight.grad
        assert gradient is not None and float(gradient.abs().max()) > 0


def test_projected_embedding_keeps_neighbours(model: CausalLM) -> None:
    draft = small_draft()
    table = model.model.embed_tokens.weight
    table.data[7] = table.data[6] + 0.001
    project_embedding(draft, model)
    projected = draft.model.embed_tokens.weight.detach()
    distances = (projected - projected[6]).norm(dim=-1)
    assert int(distances.argsort()[1]) == 7
    assert abs(float(projected.std()) - 0.02) < 1e-4
