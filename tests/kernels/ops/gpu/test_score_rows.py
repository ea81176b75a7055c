"""The kernel and its twin say the same of a row, in however many blocks it is read."""

import pytest
import torch

from slipstream_kernels.ops.gpu import score_rows as kernel
from training.fit.cross_entropy import score_rows_plainly


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("learn", [True, False])
def test_the_kernel_equals_its_twin(
    block: int, learn: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(6, 40, generator=generator)
    scores[1, 30] = scores[1, 7] = 20.0  # the first of equals is the most likely
    scores[2, 35] = 60.0
    wanted = torch.randn(3, 40, generator=generator).softmax(-1)
    places, weights = torch.tensor([0, 2, 1, 2, 2, 0]), torch.rand(6, generator=generator)
    inputs = [each.to(device) for each in (scores, wanted, places, weights)]
    found = []
    for rows in (score_rows_plainly, kernel.score_rows):
        losses = torch.empty(6, device=device)
        best = torch.empty(6, dtype=torch.int64, device=device)
        error = rows(inputs[0].clone(), *inputs[1:], losses, best, learn)
        found.append((losses, best, error))
    (losses, best, error), (its_losses, its_best, its_error) = found
    assert torch.allclose(losses, its_losses, rtol=1e-5) and torch.equal(best, its_best)
    assert best[1] == 7
    assert error.shape == its_error.shape == ((6, 40) if learn else (0, 40))
    assert torch.allclose(error, its_error, atol=1e-6)
