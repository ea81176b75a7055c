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
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one step, each [B, kv_heads, L, head_dim]."""


@dataclass(slots=True)
class UnrolledAttention:
    """The attention of one batch. documents: int64 [B, L]. compiled: block-sparse kernels, for GPUs."""

    documents: Tensor
    compiled: bool
    _mask: Tensor | None = field(default=None, init=False)

    def attend(self, query: Tensor, text: KeysValues, chain: Sequence[KeysValues]) -> Tensor:
        """[B, heads, L, head_dim] for queries of the same shape, at step len(chain); `text` is step 0's."""
        return self._sparse(query, text, chain) if self.compiled else self._dense(query, text, chain)

    def _dense(self, query: Tensor, text: KeysValues, chain: Sequence[KeysValues]) -> Tensor:
        batch, heads, length, dim = query.shape
        keys, values = text
        kv_heads = keys.shape[1]
        grouped = query.reshape(batch, kv_heads, -1, dim) * dim**-0.5
        scores = grouped @ keys.mT
        scores = scores.view(batch, kv_heads, heads // kv_heads, length, length) + self._bias(scores.dtype)
        grouped = grouped.view(batch, kv_heads, -1, length, dim)
        own = [(grouped * key[:, :, None]).sum(dim=-1, keepdim=True) for key, _ in chain]
        weights = torch.cat((scores, *own), dim=-1).softmax(dim=-1)
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
        keys, values = (torch.cat(parts, dim=2) for parts in zip(text, *chain, strict=True))
        mask = self._block_mask(len(chain))
        attend: Any = _compiled() if query.is_cuda else flex_attention
        return cast(Tensor, attend(query, keys, values, block_mask=mask, enable_gqa=True))

    def _block_mask(self, steps: int) -> BlockMask:
        """Over the keys of all steps side by side."""
        batch, length = self.documents.shape
        device = str(self.documents.device)
        return create_block_mask(seen_of(self.documents), batch, None, length, (1 + steps) * length, device=device)


def seen_of(documents: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Whether a query sees a key, by batch row, head, position, and place among the keys of all steps side by side."""
    length = documents.shape[1]

    def seen(b: Tensor, _: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        place = kv % length
        in_text = (kv <= q) & (documents[b, q] == documents[b, place])
        return torch.where(kv < length, in_text, place == q)

    return seen


def _compiled() -> Any:
    """Compiled once for a process: torch keeps what it compiled by the function, shapes and types."""
    return torch.compile(flex_attention, dynamic=False)
