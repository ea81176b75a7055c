"""Both ways to attend see the text and a row's own chain, and nothing else."""

import pytest
import torch

from training.fit.attention import BLOCK, LONG, KeysValues, UnrolledAttention, block_mask, seen_of

HEADS, KV_HEADS, DIM = 4, 2, 16


def drawn(generator: torch.Generator, batch: int, length: int, steps: int) -> tuple[torch.Tensor, list[KeysValues]]:
    query = torch.randn(batch, HEADS, length, DIM, generator=generator)
    pairs = torch.randn(steps + 1, 2, batch, KV_HEADS, length, DIM, generator=generator)
    return query, [(pair[0], pair[1]) for pair in pairs]


def one_row(query: torch.Tensor, seen: list[KeysValues], b: int, head: int, places: list[tuple[int, int]], i: int):
    keys, values = (torch.stack([seen[step][part][b, head // 2, place] for step, place in places]) for part in (0, 1))
    return torch.softmax(keys @ query[b, head, i] / DIM**0.5, dim=0) @ values


DOCUMENTS = torch.tensor([[0] * 4 + [1] * 5, [0] * 7 + [-1] * 2])


def visible(b: int, i: int, steps: int) -> list[tuple[int, int]]:
    """Step and position of all that row i sees."""
    begin = 4 if b == 0 and i >= 4 else 0
    return [(0, j) for j in range(begin, i + 1)] + [(step, i) for step in range(1, steps + 1)]


def check(out: torch.Tensor, query: torch.Tensor, seen: list[KeysValues], tolerance: float) -> None:
    for b in range(2):
        for i in range(9 if b == 0 else 7):
            for head in range(HEADS):
                expected = one_row(query, seen, b, head, visible(b, i, len(seen) - 1), i)
                assert torch.allclose(out[b, head, i], expected, atol=tolerance)
    assert out.isfinite().all()


@pytest.mark.parametrize("steps", [0, 3])
def test_rows_see_their_text_and_their_chain(steps: int) -> None:
    query, seen = drawn(torch.Generator().manual_seed(steps), 2, 9, steps)
    out = UnrolledAttention(DOCUMENTS, compiled=False).attend(query, seen[0], seen[1:])
    check(out, query, seen, 1e-5)


def test_the_mask_of_the_sparse_kernel_says_the_same() -> None:
    b, q, kv = torch.meshgrid(torch.arange(2), torch.arange(9), torch.arange(4 * 9), indexing="ij")
    seen = seen_of(DOCUMENTS)(b, torch.zeros(()), q, kv)
    for row in range(2):
        for i in range(9 if row == 0 else 7):
            places = [(int(place) // 9, int(place) % 9) for place in seen[row, i].nonzero()]
            assert places == visible(row, i, 3)


def test_blocks_hold_all_that_is_seen() -> None:
    """Blocks that are left out hold nothing, and those that are computed without the mask hold nothing unseen."""
    lengths = torch.tensor([[100, 300, 112, 0], [500, 10, 0, 2]])
    documents = torch.stack([torch.arange(4).repeat_interleave(each) for each in lengths])
    documents[1, 510:] = -1
    mask = block_mask(documents, 2)
    b, q, kv = torch.meshgrid(torch.arange(2), torch.arange(512), torch.arange(3 * 512), indexing="ij")
    seen = seen_of(documents)(b, torch.zeros(()), q, kv).view(2, 4, BLOCK, 12, BLOCK)
    assert mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None
    some, full = (
        torch.stack([torch.isin(torch.arange(12), order[:count]) for order, count in zip(orders, counts, strict=True)])
        for orders, counts in (
            (mask.kv_indices.flatten(0, 2), mask.kv_num_blocks.flatten()),
            (mask.full_kv_indices.flatten(0, 2), mask.full_kv_num_blocks.flatten()),
        )
    )
    assert not (some & full).any()
    assert torch.equal(seen.any(dim=4).any(dim=2).flatten(0, 1), some | full)
    assert seen.all(dim=4).all(dim=2).flatten(0, 1)[full].all() and full.any()


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [0, 3])
def test_the_sparse_kernel_learns_the_same(steps: int) -> None:
    """Values and gradients of the compiled kernel are those of dense products."""
    query, seen = drawn(torch.Generator().manual_seed(steps), 2, LONG + BLOCK, steps)
    documents = torch.arange(LONG + BLOCK).div(100, rounding_mode="floor").repeat(2, 1).cuda()
    leaves = [each.cuda().requires_grad_() for each in (query, *(part for pair in seen for part in pair))]
    pairs = list(zip(leaves[1::2], leaves[2::2], strict=True))
    outs = [
        UnrolledAttention(documents, compiled=compiled).attend(leaves[0], pairs[0], pairs[1:])
        for compiled in (False, True)
    ]
    assert torch.allclose(outs[0], outs[1], atol=1e-2)
    for dense, sparse in zip(*(torch.autograd.grad(out.square().sum(), leaves) for out in outs), strict=True):
        assert torch.allclose(dense, sparse, atol=5e-2)
