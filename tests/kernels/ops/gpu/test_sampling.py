from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.kernels.sampling_cases import SamplingCase, plain_case, random_case
from slipstream_kernels.ops.gpu import sampling_table as table
from slipstream_kernels.ops.gpu.sampling import sample, sample_reference, sampling_workspace
from slipstream_kernels.ops.sampling import sample_reference as sample_on_cpu
from support.gpu_sampling import cpu_rows

VOCAB = 4500
"""No power of two, and more than the share of one program where rows are few."""


def sampled(case: SamplingCase, op: object = sample) -> torch.Tensor:
    out = torch.full((len(case.logits),), -7, dtype=torch.int32, device=case.device)
    workspace = sampling_workspace(len(case.logits) + 1, case.logits.shape[1], case.device)
    for scratch in (workspace.histograms, workspace.thresholds, workspace.scores, workspace.ids):
        scratch.fill_(torch.nan if scratch.is_floating_point() else -7)
    op(*case.inputs, workspace, out)  # type: ignore[operator]  # one of two functions
    return out


@pytest.mark.parametrize(("rows", "temperature"), [(3, 0.9), (12, None), (34, 0.0)])
def test_equals_the_twin_and_the_cpu(rows: int, temperature: float | None, device: torch.device) -> None:
    """Parameters of all kinds; row counts for every split of the vocabulary among programs."""
    case = random_case(rows, VOCAB, device, seed=rows, temperature=temperature)
    before = case.logits.clone()
    tokens = sampled(case)
    assert torch.equal(tokens, sampled(case, sample_reference))
    kept, logits, cpu = cpu_rows(case)
    assert tokens[case.logit_rows < 0].eq(-1).all()
    assert np.array_equal(tokens[kept].cpu().numpy(), sample_on_cpu(logits, cpu))
    assert torch.equal(case.logits, before)


def test_rows_do_not_depend_on_their_company(device: torch.device) -> None:
    """Alone a row is split among programs, together it is one program's."""
    case = plain_case(34, VOCAB, device, temperature=0.8, seed=1)
    together = sampled(case)
    kept, logits, cpu = cpu_rows(case)
    assert np.array_equal(together[kept].cpu().numpy(), sample_on_cpu(logits, cpu))
    for index in range(0, 34, 5):
        alone = dataclasses.replace(
            case, logits=case.logits[index : index + 1], logit_rows=case.logit_rows[index : index + 1]
        )
        assert sampled(alone)[0] == together[index]


@pytest.mark.parametrize("rows", [1, 5])
def test_temperature_zero_takes_the_lowest_of_the_best(rows: int, device: torch.device) -> None:
    case = plain_case(rows, VOCAB, device)
    case.logits.fill_(-1.0)
    case.logits[:, [4400, 900, 2300]] = 0.0
    case.logits[:, 2300] = -0.0
    assert sampled(case).tolist() == [900] * rows
    case.logits[:, :3000] = -torch.inf
    assert sampled(case).tolist() == [4400] * rows


@pytest.mark.parametrize(
    ("temperature", "filters"),
    [(0.0, {}), (0.9, {}), (0.9, {"top_k": 5}), (0.9, {"top_p": 0.9}), (0.9, {"min_p": 0.1})],
)
def test_a_row_with_what_is_no_number_decides_nothing(
    temperature: float, filters: dict[str, float], device: torch.device
) -> None:
    """Its neighbours decide what they would without it, and so does the CPU."""
    case = plain_case(7, VOCAB, device, temperature=temperature, seed=5, **filters)
    expected = sampled(case).tolist()
    case.logits[0], case.logits[1] = torch.nan, -torch.inf
    case.logits[2, 4400], case.logits[3, 3], case.logits[4, 900] = torch.nan, -torch.nan, torch.inf
    expected[:5] = [-1] * 5
    kept, logits, cpu = cpu_rows(case)
    with np.errstate(invalid="ignore"):  # the interpreter computes with numpy, which warns of infinities
        assert sampled(case).tolist() == expected
    assert sampled(case, sample_reference).tolist() == expected
    assert sample_on_cpu(logits, cpu).tolist() == [expected[index] for index in kept]


@pytest.mark.parametrize(("rows", "temperature"), [(3, 0.9), (12, None), (34, 0.0)])
def test_chosen_rows_are_sampled_under_their_masks_and_no_others(
    rows: int, temperature: float | None, device: torch.device
) -> None:
    """Under a mask a row's token is that of its logits with minus infinity where the mask has none."""
    case = random_case(rows, VOCAB, device, seed=rows + 1, temperature=temperature)
    rng = np.random.default_rng(rows)
    chosen = rng.permutation(rows)[: -(-2 * rows // 3)]
    words = rng.integers(0, 2**32, (len(chosen), -(-VOCAB // 32)), dtype=np.uint32)
    words[0], words[1] = 0, 0
    words[1, 70] = 1 << 31  # one token alone
    gap = rows // 5  # a mask that is no row's
    masks = torch.from_numpy(np.insert(words, gap, 0xFFFFFFFF, 0).view(np.int32)).to(device)
    places = torch.from_numpy(np.insert(chosen, gap, -1).astype(np.int32)).to(device)
    before = case.logits.clone()
    expected = torch.full((rows,), -7, dtype=torch.int32, device=device)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :VOCAB].astype(bool)
    without = case.logits.cpu().numpy().copy()
    without[chosen] = np.where(bits, without[chosen], -np.inf)
    expected[chosen.tolist()] = sampled(
        dataclasses.replace(case, logits=torch.from_numpy(without).to(device)), sample_reference
    )[chosen.tolist()]
    awaiting = case.lines[case.logit_rows.clip(min=0).long()] % 2 == 1
    lines = case.tensors.params[:, table.FLAGS]
    lines |= torch.arange(len(lines), device=device, dtype=torch.int32) % 2 * table.AWAITS_MASKS
    for op in (sample, sample_reference):
        assert torch.equal(sampled(case, partial(op, chosen=places, masks=masks)), expected)
        without_masks = sampled(case, op)
        assert without_masks[awaiting].eq(-1).all()
        assert without_masks[~awaiting & (case.logit_rows >= 0)].ge(0).any()
    assert expected[chosen[1]] in (-1, 70 * 32 + 31) and expected[chosen[0]] == -1
    assert torch.equal(case.logits, before)


def test_rows_are_chosen_with_masks_or_not_at_all(device: torch.device) -> None:
    case = plain_case(1, VOCAB, device)
    with pytest.raises(ValueError, match="each chosen row has a mask"):
        sampled(case, partial(sample, chosen=case.logit_rows))
