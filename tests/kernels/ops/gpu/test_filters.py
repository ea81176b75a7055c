from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.kernels.sampling_cases import SamplingCase, plain_case, random_case
from slipstream_kernels.ops.filters import filter_reference
from slipstream_kernels.ops.gpu.filters import BINS, filter_rows, filter_rows_reference
from slipstream_kernels.ops.gpu.sort_keys import sort_key_reference
from slipstream_kernels.ops.logits import process_reference
from support.gpu_sampling import cpu_rows

VOCAB = 1500
UNTOUCHED = -77


def thresholds_of(op: object, case: SamplingCase) -> torch.Tensor:
    rows = len(case.logits)
    histograms = torch.full((rows, BINS), UNTOUCHED, dtype=torch.int64, device=case.device)
    thresholds = torch.full((rows, 2), UNTOUCHED, dtype=torch.int32, device=case.device)
    op(*case.inputs, histograms, thresholds)  # type: ignore[operator]  # one of two functions
    return thresholds.cpu()


def kept(x: np.ndarray, threshold: torch.Tensor) -> np.ndarray:
    """Ids above minus infinity that pass a row's threshold."""
    keys = sort_key_reference(torch.from_numpy(x)).numpy()
    key, last = int(threshold[0]) % 2**32, int(threshold[1])
    passed = (keys > key) | ((keys == key) & (np.arange(len(x)) <= last))
    return np.flatnonzero(passed & (x > -np.inf))


def filtered(logits: list[float], device: torch.device, **parameters: float) -> list[int]:
    """Ids that pass, by the kernel, which the twin must agree with."""
    case = plain_case(1, len(logits), device, temperature=1.0, **parameters)
    case.logits.copy_(torch.tensor([logits]))
    thresholds = thresholds_of(filter_rows, case)
    assert torch.equal(thresholds, thresholds_of(filter_rows_reference, case))
    return kept(np.array(logits, np.float32), thresholds[0]).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_keeps_what_the_cpu_keeps(seed: int, device: torch.device) -> None:
    case = random_case(10, VOCAB, device, seed=seed, temperature=[None, 0.7, 1.3][seed])
    thresholds = thresholds_of(filter_rows, case)
    assert torch.equal(thresholds, thresholds_of(filter_rows_reference, case))
    indices, logits, rows = cpu_rows(case)
    compared = 0
    for place, index in enumerate(indices):
        top_k, top_p, min_p = int(rows.top_k[place]), float(rows.top_p[place]), float(rows.min_p[place])
        if rows.temperature[place] == 0 or (top_k == 0 and top_p == 1 and min_p == 0):
            assert thresholds[index].tolist() == [UNTOUCHED, UNTOUCHED]
            continue
        x = process_reference(logits[place], rows, place)
        assert np.array_equal(kept(x, thresholds[index]), filter_reference(x, top_k, top_p, min_p))
        compared += 1
    assert compared > 1


def test_equals_are_kept_by_the_lowest_id(device: torch.device) -> None:
    tied = [0.0, 2.0, -0.0, 2.0, 0.0, 1.0, -0.0]
    assert filtered(tied, device, top_k=1) == [1]
    assert filtered(tied, device, top_k=3) == [1, 3, 5]
    assert filtered(tied, device, top_k=4) == [0, 1, 3, 5]
    assert filtered(tied, device, top_k=5) == [0, 1, 2, 3, 5]
    assert filtered([1.0] * 10, device, top_p=0.35) == [0, 1, 2, 3]
    assert filtered([1.0] * 10, device, top_p=0.35, top_k=5) == [0, 1]


def test_order_of_filters(device: torch.device) -> None:
    logits = np.log([0.5, 0.3, 0.1, 0.06, 0.04]).tolist()
    assert filtered(logits, device, top_p=0.75) == [0, 1]
    assert filtered(logits, device, top_p=0.85) == [0, 1, 2]
    assert filtered(logits, device, top_p=0.85, top_k=3) == [0, 1]  # 0.8 of the 0.9 that top-k leaves
    assert filtered(logits, device, min_p=0.21) == [0, 1]
    assert filtered(logits, device, min_p=0.1) == [0, 1, 2, 3]
    assert filtered(logits, device, min_p=1.0) == [0]
    assert filtered(logits, device, top_p=1e-9) == [0]


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # numpy's, in the interpreter
def test_values_of_all_sizes(device: torch.device) -> None:
    infinity = float("inf")
    wide = [1e38, -1e38, 1e-40, -1e-40, 3.0, -infinity, -3e38]
    assert filtered(wide, device, top_k=5) == [0, 1, 2, 3, 4]
    assert filtered(wide, device, top_k=7) == [0, 1, 2, 3, 4, 6]
    assert filtered(wide, device, top_p=0.9) == [0]
    assert filtered([1.0, infinity, infinity, 2.0], device, top_p=0.9) == [1, 2]
    assert filtered([-infinity, -infinity], device, top_p=0.9, top_k=1, min_p=0.1) == []


def test_neighbouring_floats_are_told_apart(device: torch.device) -> None:
    steps = np.arange(3000, dtype=np.int32)
    np.random.default_rng(0).shuffle(steps)
    values = (np.float32(17).view(np.int32) + steps).view(np.float32)
    assert filtered(values.tolist(), device, top_k=1234) == np.flatnonzero(steps >= 3000 - 1234).tolist()


def test_rows_do_not_depend_on_their_company(device: torch.device) -> None:
    case = random_case(4, VOCAB, device, seed=3, temperature=0.7)
    together = thresholds_of(filter_rows, case)
    for index in range(4):
        alone = SamplingCase(case.logits[index : index + 1], case.logit_rows[index : index + 1], *case.inputs[2:])
        assert torch.equal(thresholds_of(filter_rows, alone)[0], together[index])


def test_too_large_a_vocabulary_is_refused(device: torch.device) -> None:
    case = plain_case(1, 4, device)
    large = SamplingCase(torch.zeros(1, 2**20 + 1, device=device), *case.inputs[1:])
    with pytest.raises(ValueError, match="1048577 tokens"):
        thresholds_of(filter_rows, large)
