from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch
from slipstream_kernels.ops.gpu.preference_keys import NOTHING, number_of, preference_key, score_of

COUNT = 16


@triton.jit
def _round_trip(
    scores: tl.tensor, numbers: tl.tensor, keys: tl.tensor, out_scores: tl.tensor, out_numbers: tl.tensor
) -> None:
    i = tl.arange(0, 16)
    key = preference_key(i < 15, tl.load(scores + i), tl.load(numbers + i))
    tl.store(keys + i, key)
    tl.store(out_scores + i, score_of(key))
    tl.store(out_numbers + i, number_of(key))


def test_order_by_score_then_the_lower_number_and_give_both_back(device: torch.device) -> None:
    infinity = float("inf")
    scores = [infinity, 3e30, 1.0, 1.0, 1e-30, 0.0, -0.0, 0.0, -1e-30, -1.0, -1.0, -2.5, -3e30, -3e30, -infinity, 9.0]
    numbers = [7, 0, 3, 4, 2**31 - 1, 0, 1, 2, 5, 0, 2**31 - 1, 9, 8, 10, 2**31 - 1, 1]
    given = torch.tensor(scores, device=device), torch.tensor(numbers, dtype=torch.int32, device=device)
    keys = torch.zeros(COUNT, dtype=torch.int64, device=device)
    out = torch.zeros_like(given[0]), torch.zeros_like(given[1])
    launch(_round_trip, (1,), *given, keys, *out)
    there = keys.tolist()[:-1]
    assert there == sorted(there, reverse=True)
    assert len(set(there)) == len(there)
    assert keys[-1] == NOTHING.value < there[-1]
    assert torch.equal(out[0][:-1], given[0][:-1])
    assert out[1].tolist()[:-1] == numbers[:-1]
