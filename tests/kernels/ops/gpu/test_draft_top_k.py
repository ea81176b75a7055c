from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.kernels.sampling_cases import SamplingCase, plain_case, random_case
from slipstream_kernels.ops.candidates import top_candidates
from slipstream_kernels.ops.gpu.draft_top_k import draft_top_k, draft_top_k_reference, draft_top_k_workspace
from support.gpu_sampling import cpu_rows

VOCAB = 1500
"""No power of two, and more than the part of one program."""
ROWS = 7


def best(
    case: SamplingCase, width: int, op: Any = draft_top_k, vocabulary: torch.Tensor | None = None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = len(case.logits)
    workspace = draft_top_k_workspace(rows + 1, case.logits.shape[1], width, case.device)
    for field in dataclasses.fields(workspace):
        scratch = getattr(workspace, field.name)
        scratch.fill_(torch.nan if scratch.is_floating_point() else 7)
    out = [torch.full((rows, width), -7, dtype=torch.int32, device=case.device)]
    out += [torch.full((rows, width), -7.0, device=case.device) for _ in range(2)]
    op(*case.inputs, vocabulary, workspace, *out, **options)
    return out[0].cpu(), out[1].cpu(), out[2].cpu()


def check_same(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    assert torch.equal(found[0], expected[0])
    for values, exact in zip(found[1:], expected[1:], strict=True):
        assert torch.equal(values.isinf(), exact.isinf())
        torch.testing.assert_close(values, exact, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("width", "temperature"), [(1, None), (3, 0.0), (4, None), (8, 0.9), (16, None)])
def test_equals_the_twin_and_the_cpu(width: int, temperature: float | None, device: torch.device) -> None:
    """Parameters of all kinds, padding, ties, minus infinities, and paths whose tokens are penalised."""
    case = random_case(ROWS, VOCAB, device, seed=width, temperature=temperature)
    before = case.logits.clone()
    found = best(case, width)
    check_same(found, best(case, width, draft_top_k_reference))
    assert torch.equal(case.logits, before)
    kept, logits, cpu = cpu_rows(case)
    padding = sorted(set(range(ROWS)) - set(kept))
    assert found[0][padding].eq(-1).all()
    assert found[1][padding].eq(-torch.inf).all()
    ids, log_probs = top_candidates(logits, width, cpu)
    ids[np.isneginf(log_probs)] = -1
    assert np.array_equal(found[0][kept].numpy(), ids)
    np.testing.assert_allclose(found[2][kept].numpy(), log_probs, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("rows", "vocab"), [(3, 5000), (9, 128256), (1, 32000), (40, 128256)])
def test_rows_do_not_depend_on_how_they_are_cut(
    rows: int, vocab: int, temperature: float, device: torch.device
) -> None:
    """All sizes of a program's part, of rows that are few and of rows that are many, most of them padding."""
    case = plain_case(2, vocab, device, temperature=temperature, seed=3)
    wide = dataclasses.replace(
        case,
        logits=case.logits[:1].expand(rows, vocab),
        logit_rows=torch.full((rows,), -1, dtype=torch.int32, device=device),
    )
    wide.logit_rows[0] = 0
    one = dataclasses.replace(case, logits=case.logits[:1], logit_rows=case.logit_rows[:1])
    found = best(wide, 5, filtered=False)
    assert found[0][1:].eq(-1).all()
    check_same(tuple(each[:1] for each in found), best(one, 5, draft_top_k_reference))


@pytest.mark.parametrize("op", [draft_top_k, draft_top_k_reference])
def test_ties_go_to_the_lowest_place(op: Any, device: torch.device) -> None:
    case = plain_case(1, VOCAB, device)
    case.logits.fill_(-1.0)
    case.logits[:, [1400, 900, 1300]] = 0.0
    case.logits[:, 900] = -0.0
    case.logits[:, 7] = torch.nan
    places, scores, log_probs = best(case, 6, op)
    assert places.tolist() == [[900, 1300, 1400, 0, 1, 2]]
    assert torch.equal(scores, log_probs)
    case.logits.fill_(-torch.inf)
    assert best(case, 2, op)[0].tolist() == [[-1, -1]]
    case.logits[:, 1100] = 3.0
    places, scores, _ = best(case, 2, op)
    assert places.tolist() == [[1100, -1]]
    assert scores.tolist() == [[0.0, -torch.inf]]


def test_noise_belongs_to_the_target_s_ids(device: torch.device) -> None:
    """A vocabulary of places draws what the whole one does where only its tokens can be chosen."""
    vocabulary = torch.arange(0, VOCAB, 3, dtype=torch.int32, device=device)
    whole = plain_case(2, VOCAB, device, temperature=1.1, seed=5)
    allowed = torch.zeros(VOCAB, dtype=torch.bool, device=device)
    allowed[vocabulary.long()] = True
    whole.logits[:, ~allowed] = -torch.inf
    part = plain_case(2, len(vocabulary), device, temperature=1.1, seed=5)
    part = dataclasses.replace(
        part, logits=whole.logits[:, ::3].contiguous(), positions=whole.positions, lines=whole.lines
    )
    places, *values = best(part, 4, vocabulary=vocabulary)
    check_same((vocabulary.cpu()[places.long()], *values), best(whole, 4))
    check_same((places, *values), best(part, 4, draft_top_k_reference, vocabulary))
