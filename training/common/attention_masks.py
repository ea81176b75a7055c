"""Which tokens of packed rows see which: those of their own document up to themselves."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128


def dense_mask(documents: Tensor) -> Tensor:
    """Boolean [B, 1, T, T]: a query sees the keys of its own document group up to itself."""
    same = documents[:, :, None] == documents[:, None, :]
    return (same & torch.ones_like(same[0]).tril())[:, None]


def block_mask(documents: Tensor) -> BlockMask:
    """The same mask for flex attention, blocks of 128 found from each block's first and last document.

    Needs documents [B, T] that never decrease along a row, and T a multiple of 128.
    """
    blocks = documents.view(documents.shape[0], -1, BLOCK)
    first, last = blocks[:, :, 0], blocks[:, :, -1]
    count = blocks.shape[1]
    below = torch.ones(count, count, dtype=torch.bool, device=documents.device).tril(-1)
    diagonal = torch.eye(count, dtype=torch.bool, device=documents.device)
    some = (last[:, None, :] >= first[:, :, None]) & below | diagonal
    full = some & (first[:, None, :] == last[:, :, None]) & ~diagonal

    def visible(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents[batch, query] == documents[batch, key])

    return BlockMask.from_kv_blocks(
        *_listed(some & ~full),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(documents.shape[1],) * 2,
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Counts int32 [B, 1, Q] and indices int32 [B, 1, Q, K], the chosen first, of boolean blocks [B, Q, K]."""
    counts = blocks.sum(dim=-1, dtype=torch.int32)
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True).int()
    return counts[:, None], indices[:, None]
