from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.add_branch import add_branch, add_branch_reference


@pytest.mark.parametrize("hidden", [64, 576, 9000])
@pytest.mark.parametrize(("biased", "normed"), [(True, False), (False, True), (True, True)])
def test_matches_torch(device, hidden, biased, normed):
    generator = torch.Generator().manual_seed(hidden)

    def random(*shape):
        return torch.randn(shape, generator=generator).bfloat16().to(device)

    branch, x = random(3, hidden), random(3, hidden)
    options = {"bias": random(hidden) if biased else None, "norm": random(hidden).float() + 1 if normed else None}
    added = branch.double() + (options["bias"].double() if biased else 0)
    if normed:
        added = added / (added.square().mean(-1, keepdim=True) + 1e-6).sqrt() * options["norm"].double()
    for run in (add_branch, add_branch_reference):
        out = x.clone()
        run(branch, out, 1e-6, **options)
        torch.testing.assert_close(out.double(), x.double() + added, rtol=8e-3, atol=1e-2)


def test_a_row_does_not_depend_on_its_company(device):
    generator = torch.Generator().manual_seed(1)
    branch, x = (torch.randn(4, 320, generator=generator).bfloat16().to(device) for _ in range(2))
    norm = torch.ones(320, device=device)
    together, alone = x.clone(), x[2:3].clone()
    add_branch(branch, together, 1e-6, norm=norm)
    add_branch(branch[2:3].contiguous(), alone, 1e-6, norm=norm)
    assert torch.equal(together[2:3], alone)
