"""Rows see their text and their own chain, and nothing else; gradients are those of plain products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from training.fit.attention import UnrolledAttention
from training.fit.batch import Batch

HEADS, KV_HEADS, DIM, STEPS = 4, 2, 16, 3
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 6, [0] * 9 + [-1] * 2])
REACH = torch.tensor([[0, 3, 2, 1, 0, 4, 3, 2, 1, 0, 0], [0, 0, 1, 0, 0, 3, 2, 1, 0, 0, 0]])


def batch_of(documents: Tensor, reach: Tensor, dtype: torch.dtype) -> Batch:
    """Without tokens or states that matter."""
    zeros = torch.zeros_like(documents)
    return Batch.of(zeros, documents, zeros, reach, zeros[..., None].to(dtype))


def drawn(batch: Batch, steps: int) -> list[Tensor]:
    """A query of step `steps`, and the keys and values of all up to it."""
    generator = torch.Generator().manual_seed(steps)

    def make(n: int, heads: int) -> Tensor:
        return torch.randn(n, heads, DIM, generator=generator).requires_grad_()

    sizes = [batch.tokens.numel(), *(len(batch.at(step)) for step in range(1, steps + 1))]
    return [make(len(batch.at(steps)), HEADS), *(make(n, KV_HEADS) for n in sizes for _ in "kv")]


def attended(batch: Batch, query: Tensor, *pairs: Tensor) -> Tensor:
    text, *chain = zip(pairs[::2], pairs[1::2], strict=True)
    return UnrolledAttention(batch).attend(query, text, chain)


def by_rows(documents: Tensor, places: Tensor, query: Tensor, *pairs: Tensor) -> Tensor:
    """Row by row and head by head."""
    flat, rows = documents.flatten(), list[Tensor]()
    for number, place in enumerate(places.tolist()):
        begin = place - place % documents.shape[1]
        seen = [each for each in range(begin, place + 1) if flat[each] == flat[place]]
        heads = list[Tensor]()
        for head in range(HEADS):
            kv = head * KV_HEADS // HEADS
            keys, values = (
                torch.cat((pairs[part][seen, kv], *(own[None, number, kv] for own in pairs[2 + part :: 2])))
                for part in (0, 1)
            )
            heads.append(torch.softmax(keys @ query[number, head] / DIM**0.5, dim=0) @ values)
        rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("steps", range(STEPS))
def test_values_and_gradients_are_those_of_plain_products(steps: int) -> None:
    batch = batch_of(DOCUMENTS, REACH, torch.float32)
    leaves = drawn(batch, steps)
    got, wanted = attended(batch, *leaves), by_rows(DOCUMENTS, batch.at(steps), *leaves)
    assert got.shape == wanted.shape and torch.allclose(got, wanted, atol=1e-6)
    weights = torch.randn(got.shape, generator=torch.Generator().manual_seed(9))
    for mine, plain in zip(
        torch.autograd.grad((got * weights).sum(), leaves),
        torch.autograd.grad((wanted * weights).sum(), leaves),
        strict=True,
    ):
        assert mine.shape == plain.shape and torch.allclose(mine, plain, atol=1e-5)


def test_a_step_without_rows_learns_nothing() -> None:
    batch = batch_of(DOCUMENTS, torch.zeros_like(REACH), torch.float32)
    leaves = drawn(batch, 1)
    out = attended(batch, *leaves)
    assert out.shape == (0, HEADS, DIM)
    assert not any(each.any() for each in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.gpu
@pytest.mark.parametrize("steps", range(STEPS))
def test_the_kernels_of_a_gpu_give_the_same(steps: int) -> None:
    """Within what bfloat16 rounds, and the same bits each time."""
    generator = torch.Generator().manual_seed(0)
    documents = torch.arange(768).div(100, rounding_mode="floor").repeat(2, 1)
    reach = torch.randint(0, STEPS + 1, documents.shape, generator=generator)
    batch = batch_of(documents, reach, torch.float32)
    leaves = drawn(batch, steps)
    there = [leaf.detach().cuda().bfloat16().requires_grad_() for leaf in leaves]
    on_gpu = batch.to(torch.device("cuda"), torch.bfloat16)
    wanted, got = attended(batch, *leaves), attended(on_gpu, *there)
    weights = torch.randn(wanted.shape, generator=generator)
    plain = torch.autograd.grad((wanted * weights).sum(), leaves)
    once, again = (
        torch.autograd.grad((attended(on_gpu, *there) * weights.cuda().bfloat16()).sum(), there) for _ in range(2)
    )
    for mine, theirs in ((got, wanted), *zip(once, plain, strict=True)):
        assert (mine.cpu().float() - theirs).norm() < 0.02 * theirs.norm()
    assert all(torch.equal(*pair) for pair in zip(once, again, strict=True))
