from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from benchmarks.kernels.sampling_cases import plain_case, random_case
from slipstream_kernels.ops.gpu.logits import process, process_reference
from slipstream_kernels.ops.logits import process_reference as process_on_cpu
from support.gpu_sampling import cpu_rows

VOCAB = 1500


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_twin_and_the_cpu_bit_for_bit(seed: int, device: torch.device) -> None:
    case = random_case(24, VOCAB, device, seed=seed)
    before = case.logits.clone()
    out, twin = (torch.full_like(case.logits, torch.nan) for _ in range(2))
    process(*case.inputs, out)
    process_reference(*case.inputs, twin)
    kept, logits, rows = cpu_rows(case)
    padding = case.logit_rows < 0
    assert 0 < int(padding.sum()) == len(padding) - len(kept)
    assert out[padding].isnan().all()
    assert torch.equal(out[kept], twin[kept])
    assert torch.equal(case.logits, before)
    for index in range(len(kept)):
        assert np.array_equal(out[kept[index]].cpu().numpy(), process_on_cpu(logits[index], rows, index))


def test_tokens_of_the_path_are_counted_however_often_they_occur(device: torch.device) -> None:
    case = plain_case(3, VOCAB, device, frequency=0.5, presence=0.25)
    case.resolved_ids.copy_(torch.tensor([1400, 7, 7]))
    case.depths.copy_(torch.tensor([0, 3, 1]))
    case.paths[1, :3] = torch.tensor([0, 1, 2])
    case.paths[2, 0] = 1
    out = torch.full_like(case.logits, torch.nan)
    process(*case.inputs, out)
    subtracted = torch.zeros_like(out)
    subtracted[1, 1400], subtracted[1, 7], subtracted[2, 7] = 0.75, 1.25, 0.75
    assert torch.allclose(out, case.logits - subtracted, atol=1e-6)


def test_ends_are_forbidden_below_the_least_position(device: torch.device) -> None:
    case = plain_case(2, VOCAB, device, min_position=11)
    case.positions.copy_(torch.tensor([9, 10]))  # they decide positions 10 and 11
    case.tensors.token_flags[:, 3] = 2
    out = torch.full_like(case.logits, torch.nan)
    process(*case.inputs, out)
    assert out[0, 3] == -torch.inf
    assert torch.equal(out[1], case.logits[1])


def test_nan_is_never_a_candidate_and_rows_may_be_strided(device: torch.device) -> None:
    case = plain_case(2, VOCAB, device, temperature=0.5)
    wide = torch.full((2, VOCAB + 20), torch.nan, device=device)
    wide[:, :VOCAB] = case.logits
    wide[0, 5] = torch.nan
    out = torch.full_like(case.logits, torch.nan)
    process(*dataclasses.replace(case, logits=wide[:, :VOCAB]).inputs, out)
    assert out[0, 5] == -torch.inf
    assert torch.equal(out[1], case.logits[1] / 0.5)


def test_tables_of_another_vocabulary_are_refused(device: torch.device) -> None:
    case = plain_case(2, VOCAB, device)
    with pytest.raises(ValueError, match="fit neither"):
        process(*dataclasses.replace(case, logits=case.logits[:, 1:]).inputs, case.logits)
