from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.experts.group_rows import (
    TOGETHER,
    WORDS,
    ExpertGroups,
    are_grouped,
    group_rows,
    group_rows_reference,
    most_blocks,
    place_of,
    tokens_of,
)

EXPERTS = 5


@triton.jit
def _places(out: tl.tensor, tiles: tl.tensor, together: tl.constexpr) -> None:
    program = tl.program_id(0)
    block, tile = place_of(program, tl.num_programs(0), tiles, together)
    tl.store(out + 2 * program, block)
    tl.store(out + 2 * program + 1, tile)


def groups_of(ids: torch.Tensor, tokens: int) -> ExpertGroups:
    """Full of what earlier rows have left: every pair in blocks of expert 0."""
    order = torch.arange(ids.numel(), dtype=torch.int32, device=ids.device)
    lines = most_blocks(ids.numel(), EXPERTS, tokens)
    blocks = torch.full((lines, WORDS), tokens, dtype=torch.int32, device=ids.device)
    blocks[:, :2] = 0
    return ExpertGroups(order, blocks, tokens)


@pytest.mark.parametrize("op", [group_rows, group_rows_reference])
@pytest.mark.parametrize(
    "kind", ["random", "all of one", "of the last alone", "full blocks", "much padding", "padding alone"]
)
def test_every_pair_is_in_one_block_of_its_expert(device: torch.device, op, kind: str) -> None:
    torch.manual_seed(0)
    ids = {
        "random": torch.randint(0, EXPERTS, (37, 3)),
        "all of one": torch.full((40, 1), 2),
        "of the last alone": torch.full((3, 1), EXPERTS - 1),
        "full blocks": torch.arange(EXPERTS).repeat_interleave(32)[:, None],
        "much padding": torch.cat([torch.randint(0, EXPERTS, (5, 3)), torch.full((59, 3), EXPERTS)]),
        "padding alone": torch.full((40, 2), EXPERTS),
    }[kind].to(device, torch.int32)
    groups = groups_of(ids, 16)
    op(ids, groups, experts=EXPERTS)
    found = torch.full((ids.numel(),), EXPERTS, device=device)
    for expert, first, count in groups.blocks.tolist():
        assert 0 <= count <= 16
        places = groups.order[first : first + count].long()
        assert (found[places] == EXPERTS).all()
        found[places] = expert
    assert torch.equal(found.int(), ids.flatten())


def test_the_kernel_orders_pairs_as_its_twin(device: torch.device) -> None:
    torch.manual_seed(1)
    ids = torch.randint(0, EXPERTS, (700, 2), dtype=torch.int32, device=device)  # more than are read at a time
    ours, theirs = groups_of(ids, 64), groups_of(ids, 64)
    group_rows(ids, ours, experts=EXPERTS)
    group_rows_reference(ids, theirs, experts=EXPERTS)
    assert torch.equal(ours.order, theirs.order)
    there = theirs.blocks[:, 2] > 0
    assert torch.equal(ours.blocks[there], theirs.blocks[there]) and (ours.blocks[~there, 2] == 0).all()


@pytest.mark.parametrize(("blocks", "tiles"), [(1, 5), (8, 3), (19, 4), (21, 1)])
def test_programs_of_some_blocks_run_beside_one_another(device: torch.device, blocks: int, tiles: int) -> None:
    """Each tile of each block has one program; blocks that run together are of one tile first."""
    places = torch.full((blocks * tiles, 2), -1, dtype=torch.int32, device=device)
    _places[(blocks * tiles,)](places, tiles, TOGETHER)
    first = min(blocks, TOGETHER)
    assert places[:first].tolist() == [[block, 0] for block in range(first)]
    assert sorted(map(tuple, places.tolist())) == [(block, tile) for block in range(blocks) for tile in range(tiles)]


def test_sizes() -> None:
    assert [tokens_of(pairs, 8) for pairs in (1, 96, 104, 216, 10**6)] == [16, 16, 32, 64, 128]
    assert [are_grouped(pairs, 128, 8) for pairs in (8, 32, 33)] == [False, False, True]
