from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch
from slipstream_kernels.ops.gpu.position_splits import (
    BLOCK,
    is_split_bound,
    num_splits,
    split_bounds,
    splits_below,
    start_of_split,
)

LONGEST = 131_072


@triton.jit
def _device_splits(positions, starts, below, bounds, COUNT: tl.constexpr):  # noqa: N803  a constant it is compiled for
    index = tl.arange(0, COUNT)
    position = tl.load(positions + index)
    tl.store(starts + index, start_of_split(index))
    tl.store(below + index, splits_below(position))
    tl.store(bounds + index, is_split_bound(position).to(tl.int32))


def test_splits_lie_end_to_end_and_hold_whole_blocks():
    end = 0
    for split in range(num_splits(LONGEST)):
        begin, stop = split_bounds(split)
        assert begin == end
        assert begin % BLOCK == 0
        assert stop - begin == (128 if begin < 2048 else 512 if begin < 16384 else 2048)
        end = stop
    assert end == LONGEST


def test_number_of_splits_counts_those_that_begin_below():
    begins = [split_bounds(split)[0] for split in range(200)]
    for positions in [*range(300), 2047, 2048, 2049, 2560, 2561, 16383, 16384, 16385, 18432, 18433, LONGEST]:
        assert num_splits(positions) == sum(begin < positions for begin in begins)


def test_device_functions_agree_with_the_host(device):
    count = 4096
    positions = torch.arange(0, count * 33, 33, dtype=torch.int32, device=device)
    positions[: count // 2] = torch.arange(0, count // 2 * BLOCK, BLOCK)
    starts, below, bounds = (torch.full_like(positions, -1) for _ in range(3))
    launch(_device_splits, (1,), positions, starts, below, bounds, COUNT=count)
    ends = torch.tensor([split_bounds(split)[1] for split in range(200)], device=device)
    assert starts.tolist() == [split_bounds(split)[0] for split in range(count)]
    assert torch.equal(below.long(), (ends[None, :] <= positions[:, None]).sum(1))
    assert torch.equal(bounds.bool(), (ends[None, :] == positions[:, None]).any(1) | (positions == 0))
