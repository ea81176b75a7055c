from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch
from slipstream_kernels.ops.gpu.position_splits import (
    BLOCK,
    is_split_bound,
    num_splits,
    own_block,
    split_bounds,
    splits_below,
    start_of_own_block,
    start_of_split,
)

LONGEST = 131_072


@triton.jit
def _device_splits(positions, starts, below, bounds, own, COUNT: tl.constexpr):  # noqa: N803  a constant it is compiled for
    index = tl.arange(0, COUNT)
    position = tl.load(positions + index)
    tl.store(starts + index, start_of_split(index))
    tl.store(below + index, splits_below(position))
    tl.store(bounds + index, is_split_bound(position).to(tl.int32))
    tl.store(own + index, start_of_own_block(position))


def test_splits_lie_end_to_end_and_hold_whole_blocks():
    end = 0
    for split in range(num_splits(LONGEST)):
        begin, stop = split_bounds(split)
        assert begin == end
        assert begin % BLOCK == 0
        assert stop - begin == (128 if begin < 1024 else 256 if begin < 4096 else 512 if begin < 32768 else 1024)
        end = stop
    assert end == LONGEST


def test_number_of_splits_counts_those_that_begin_below():
    begins = [split_bounds(split)[0] for split in range(300)]
    for positions in [*range(300), 1023, 1024, 1025, 1281, 4095, 4096, 4097, 4609, 32767, 32768, 32769, 33793, LONGEST]:
        assert num_splits(positions) == sum(begin < positions for begin in begins)


def test_own_block_holds_the_last_position():
    assert own_block(0) == 0
    for length in range(1, 300):
        assert own_block(length) <= length - 1 < own_block(length) + BLOCK
        assert own_block(length) % BLOCK == 0


def test_device_functions_agree_with_the_host(device):
    count = 4096
    positions = torch.arange(0, count * 33, 33, dtype=torch.int32, device=device)
    positions[: count // 2] = torch.arange(0, count // 2 * BLOCK, BLOCK)
    starts, below, bounds, own = (torch.full_like(positions, -1) for _ in range(4))
    launch(_device_splits, (1,), positions, starts, below, bounds, own, COUNT=count)
    ends = torch.tensor([split_bounds(split)[1] for split in range(300)], device=device)
    assert starts.tolist() == [split_bounds(split)[0] for split in range(count)]
    assert torch.equal(below.long(), (ends[None, :] <= positions[:, None]).sum(1))
    assert own.tolist() == [own_block(position) for position in positions.tolist()]
    assert torch.equal(bounds.bool(), (ends[None, :] == positions[:, None]).any(1) | (positions == 0))
