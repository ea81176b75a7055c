from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch
from slipstream_kernels.ops.gpu.sort_keys import MINUS_INFINITY_KEY, as_int32, sort_key, sort_key_reference, value_of


@triton.jit
def keys_kernel(x: tl.tensor, keys: tl.tensor, values: tl.tensor, count: tl.constexpr) -> None:
    place = tl.arange(0, count)
    found = sort_key(tl.load(x + place))
    tl.store(keys + place, found.to(tl.int32, bitcast=True))
    tl.store(values + place, value_of(found))


def test_keys_have_the_order_of_the_numbers(device: torch.device) -> None:
    x = torch.randint(-(2**31), 2**31, (1024,)).to(torch.int32).view(torch.float32).nan_to_num()
    x[:8] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-45, -1e-45, 3.4e38, -3.4e38])
    x = x.to(device)
    keys, values = torch.zeros_like(x, dtype=torch.int32), torch.full_like(x, torch.nan)
    launch(keys_kernel, (1,), x, keys, values, count=1024)
    unsigned = keys.long() & 0xFFFFFFFF
    assert torch.equal(unsigned, sort_key_reference(x))
    assert torch.equal(values, x)
    assert torch.equal(unsigned[:, None] < unsigned, x[:, None] < x)
    assert int(unsigned.min()) == MINUS_INFINITY_KEY
    assert [as_int32(key) for key in unsigned.tolist()] == keys.tolist()
