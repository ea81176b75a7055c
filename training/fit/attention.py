"""Attention of a drafter that is unrolled over a text: each row sees the text, and its own chain of drafted rows.

At step 0 row i stands on the target's states. At step k it takes the state that it left itself at step k - 1, and sees
what it would see when serving: the rows of the text up to i, as step 0 computed them, and its own rows of steps 1 to k;
nothing of other rows' chains (EAGLE-3, arXiv 2503.01840, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128
LONG = 2048
"""Rows above it are worth kernels of their own, which compile for a minute; below, dense products are as fast."""
VARIANTS = 64
"""Compiled kernels at most: one for each number of steps, with gradients and without."""

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one step, each [B, kv_heads, L, head_dim]."""


@dataclass(slots=True)
class UnrolledAttention:
    """The attention of one batch. documents: int64 [B, L].

    compiled: block-sparse kernels, which are for GPUs and rows of more than LONG positions that are a multiple of
    BLOCK; others get dense products.
    """

    documents: Tensor
    compiled: bool
    _mask: Tensor | None = field(default=None, init=False)

    def attend(self, query: Tensor, text: KeysValues, chain: Sequence[KeysValues]) -> Tensor:
        """[B, heads, L, head_dim] for queries of the same shape, at step len(chain); `text` is step 0's."""
        sparse = self.compiled and query.shape[2] > LONG and query.shape[2] % BLOCK == 0
        return self._sparse(query, text, chain) if sparse else self._dense(query, text, chain)

    def _dense(self, query: Tensor, text: KeysValues, chain: Sequence[KeysValues]) -> Tensor:
        batch, heads, length, dim = query.shape
        keys, values = text
        kv_heads = keys.shape[1]
        grouped = query.reshape(batch, kv_heads, -1, dim) * dim**-0.5
        scores = grouped @ keys.mT
        scores = scores.view(batch, kv_heads, heads // kv_heads, length, length) + self._bias(scores.dtype)
        grouped = grouped.view(batch, kv_heads, -1, length, dim)
        own = [(grouped * key[:, :, None]).sum(dim=-1, keepdim=True) for key, _ in chain]
        weights = torch.cat((scores, *own), dim=-1).softmax(dim=-1, dtype=torch.float32).to(values.dtype)
        seen = weights[..., :length].reshape(batch, kv_heads, -1, length) @ values
        attended = seen.view(batch, kv_heads, -1, length, dim)
        for step, (_, value) in enumerate(chain, length):
            attended = attended + weights[..., step, None] * value[:, :, None]
        return attended.reshape(batch, heads, length, dim)

    def _bias(self, dtype: torch.dtype) -> Tensor:
        """[B, 1, 1, L, L]: 0 where a position of the text is seen, else minus infinity. Each position sees itself."""
        if self._mask is None:
            same = self.documents[:, :, None] == self.documents[:, None, :]
            self._mask = torch.zeros_like(same, dtype=dtype).masked_fill_(~same.tril(), -torch.inf)[:, None, None]
        return self._mask

    def _sparse(self, query: Tensor, text: KeysValues, chain: Sequence[KeysValues]) -> Tensor:
        from torch._dynamo import config as dynamo  # takes seconds, and the CPU has no use for it

        keys, values = (torch.cat(parts, dim=2) for parts in zip(text, *chain, strict=True))
        mask = block_mask(self.documents, len(chain))
        attend: Any = torch.compile(flex_attention, dynamic=False)
        with dynamo.patch(recompile_limit=VARIANTS):
            return cast(Tensor, attend(query, keys, values, block_mask=mask, enable_gqa=True))


def block_mask(documents: Tensor, steps: int) -> BlockMask:
    """`seen_of` over the keys of step 0 and `steps` more, by blocks of BLOCK found from their first and last document.

    documents: int64 [B, L], ascending along a row until the padding, L a multiple of BLOCK.
    """
    ascending = documents.masked_fill(documents < 0, torch.iinfo(documents.dtype).max)
    blocks = ascending.view(len(documents), -1, BLOCK)
    first, last = blocks[:, :, 0], blocks[:, :, -1]
    count = blocks.shape[1]
    diagonal = torch.eye(count, dtype=torch.bool, device=documents.device)
    below = torch.ones_like(diagonal).tril(-1)
    some = (last[:, None, :] >= first[:, :, None]) & below | diagonal
    full = some & (first[:, None, :] == last[:, :, None]) & below
    chain = diagonal.repeat(len(documents), 1, steps)
    return BlockMask.from_kv_blocks(
        *_listed(torch.cat((some & ~full, chain), dim=2)),
        *_listed(torch.cat((full, torch.zeros_like(chain)), dim=2)),
        BLOCK_SIZE=BLOCK,
        mask_mod=seen_of(documents),
        seq_lengths=(documents.shape[1], (1 + steps) * documents.shape[1]),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block has, and which, those first; of bool [B, query blocks, key blocks]."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32)[:, None], order.int()[:, None]


def seen_of(documents: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Whether a query sees a key, by batch row, head, position, and place among the keys of all steps side by side."""
    length = documents.shape[1]

    def seen(b: Tensor, _: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        place = kv % length
        in_text = (kv <= q) & (documents[b, q] == documents[b, place])
        return torch.where(kv < length, in_text, place == q)

    return seen
