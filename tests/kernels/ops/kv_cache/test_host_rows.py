from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.kv_cache.host_rows import encode_rows
from slipstream_kernels.ops.kv_cache.kv_codes import decode
from slipstream_kernels.ops.tree_attention import attend, attend_coded

SLOTS = 40


@pytest.mark.parametrize("fixed", [0.0, 0.0371])
@pytest.mark.parametrize("head_dim", [16, 48, 80, 128])
def test_attention_has_the_bits_of_the_numbers_that_codes_stand_for(head_dim: int, fixed: float) -> None:
    rng = np.random.default_rng(head_dim)
    query = rng.normal(size=head_dim).astype(np.float32)
    plain, coded = [], []
    for _ in range(2):
        rows = (rng.normal(size=(SLOTS, head_dim)) * 2.0 ** rng.integers(-12, 5, (SLOTS, 1))).astype(np.float32)
        rows[3] = 0
        codes, scales = encode_rows(rows, fixed)
        codes[:, 0] = np.arange(SLOTS) * 3  # codes of all kinds, zeros of both signs and subnormal ones among them
        codes[7, 1:10] = [0, 1, 7, 8, 9, 128, 129, 135, 254]
        decoded = decode(torch.tensor(codes), torch.tensor(scales))
        plain.append(np.ascontiguousarray(decoded.float().numpy()))
        coded += [codes, scales]
    slots = np.concatenate([rng.permutation(SLOTS)[:35], np.full(5, 2)]).astype(np.int32)
    outs = np.full((2, head_dim), np.nan, np.float32)
    weights = np.empty((2, 64), np.float32)
    rest = np.float32(0.3), np.float32(0), np.float32(-np.inf)
    at = [array.ctypes.data for array in (*plain, *coded)]
    attend(
        query.ctypes.data, at[0], at[1], slots.ctypes.data, 35, head_dim, *rest,
        weights[0].ctypes.data, outs[0].ctypes.data,
    )  # fmt: skip
    attend_coded(
        query.ctypes.data, *at[2:], slots.ctypes.data, 35, head_dim, *rest,
        weights[1].ctypes.data, outs[1].ctypes.data,
    )  # fmt: skip
    assert np.isfinite(outs).all()
    assert np.array_equal(*outs.view(np.uint32))
