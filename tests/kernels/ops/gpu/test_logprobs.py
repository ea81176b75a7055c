from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.gpu.logprobs import logprobs, logprobs_reference
from slipstream_kernels.ops.logprobs import logprobs_reference as logprobs_on_cpu

VOCAB = 4500


def results(op: object, logits: torch.Tensor, rows: torch.Tensor, chosen: torch.Tensor, top: int) -> list[torch.Tensor]:
    n, device = len(rows), logits.device
    out = [
        torch.full((n,), torch.nan, device=device),
        torch.full((n,), -7, dtype=torch.int32, device=device),
        torch.full((n, top), -7, dtype=torch.int32, device=device),
        torch.full((n, top), torch.nan, device=device),
    ]
    op(logits, rows, chosen, top, *out)  # type: ignore[operator]  # one of two functions
    return [each.cpu() for each in out]


def random_logits(device: torch.device) -> torch.Tensor:
    """Rows of more than the vocabulary's width; some of many ties, some with tokens at minus infinity."""
    torch.manual_seed(0)
    logits = torch.randn(9, VOCAB + 12, device=device) * 3
    logits[::2] = logits[::2].round()
    logits[::3][torch.rand_like(logits[::3]) < 0.2] = -torch.inf
    return logits[:, :VOCAB]


@pytest.mark.parametrize("top", [0, 1, 20])
def test_equals_the_twin_and_the_cpu(top: int, device: torch.device) -> None:
    logits = random_logits(device)
    rows = torch.tensor([8, 0, 3, 3, 1], dtype=torch.int32, device=device)
    chosen = torch.tensor([0, VOCAB - 1, 17, 2000, 5], dtype=torch.int32, device=device)
    found = results(logprobs, logits, rows, chosen, top)
    twin = results(logprobs_reference, logits, rows, chosen, top)
    cpu = logprobs_on_cpu(logits[rows.long()].cpu().numpy(), chosen.cpu().numpy(), top)
    for expected in (twin, list(cpu)):
        assert torch.equal(found[1], expected[1].int())
        assert torch.equal(found[2], expected[2].int())
        assert np.allclose(found[0], expected[0].float(), rtol=1e-6, atol=0)
        assert np.allclose(found[3], expected[3].float(), rtol=1e-6, atol=0)


def test_ranks_and_best_agree(device: torch.device) -> None:
    logits = random_logits(device)
    rows = torch.full((20,), 4, dtype=torch.int32, device=device)
    _, _, ids, values = results(logprobs, logits, rows[:1], rows[:1], 20)
    chosen = ids[0].to(device)
    of_chosen, ranks, _, _ = results(logprobs, logits, rows, chosen, 0)
    assert ranks.tolist() == list(range(1, 21))
    assert torch.equal(of_chosen, values[0])


def test_more_tokens_than_finite_ones(device: torch.device) -> None:
    logits = torch.full((1, 10), -torch.inf, device=device)
    logits[0, [7, 2]] = 0.0
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    chosen, rank, ids, values = results(logprobs, logits, zero, zero + 2, 5)
    assert ids.tolist() == [[2, 7, 0, 1, 3]]
    assert rank.tolist() == [1]
    assert torch.allclose(values[0, :2].double(), torch.tensor([0.5, 0.5]).double().log())
    assert torch.equal(values[0, :1], chosen)
    assert values[0, 2:].eq(-torch.inf).all()
