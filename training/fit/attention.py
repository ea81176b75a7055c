"""Attention of a drafter that is unrolled over a text: each row sees the text, and its own chain of drafted rows.

At step 0 row i stands on the target's states. At step k it takes the state that it left itself at step k - 1, and sees
what it would see when serving: the rows of the text up to i, as step 0 computed them, and its own rows of steps 1 to k;
nothing of other rows' chains (EAGLE-3, arXiv 2503.01840, section 3.2).

The text is attended to by kernels that know nothing of chains. They give the logarithm of their normaliser, with which
the few products of a chain are merged in; given the normaliser and the values of all, their backward computes what the
text has of the gradients, as it takes nothing else from the forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from training.fit.batch import Batch

KeysValues = tuple[Tensor, Tensor]
"""Keys and values, each [n, kv_heads, head_dim]."""

# Private, as what is public neither gives the normaliser nor takes another one back.
_ON_CPU: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 - see above
_ON_CPU_BACKWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001 - see above
_ON_GPU: Any = torch.ops.aten._flash_attention_forward  # noqa: SLF001 - see above
_ON_GPU_BACKWARD: Any = torch.ops.aten._flash_attention_backward  # noqa: SLF001 - see above


class UnrolledAttention:
    """The attention of one batch, whose B * L places lie side by side. On GPUs it computes in bfloat16 alone."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._text: _Text = (_Segments if batch.tokens.is_cuda else _Masked)(batch)

    def attend(self, query: Tensor, text: KeysValues, chain: Sequence[KeysValues]) -> Tensor:
        """[n, heads, head_dim] of queries of the same shape, at step len(chain), for the places that count there.

        text: of all places. chain: of steps 1 on, each of the places that count there.
        """
        places = self._batch.counting[: len(query)]
        own = [each[: len(query)] for pair in chain for each in pair]
        attend: Any = _Merged.apply
        return cast(Tensor, attend(query, *text, self._text, places, *own))


class _Merged(torch.autograd.Function):
    """Softmax over the text and a chain of each row."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, text: _Text, places: Tensor, *chain: Tensor
    ) -> Tensor:
        spread = query.new_zeros(len(keys), *query.shape[1:]).index_copy_(0, places, query)
        out, ends, state = text.forward(spread, keys, values)
        if chain:
            own = torch.stack(chain[::2]), torch.stack(chain[1::2])
            merged = text.merge(query.contiguous(), *own, places, out, ends)
        else:
            merged = out.index_select(0, places)
        ctx.save_for_backward(spread, keys, values, out, ends, places, query, merged, *chain, *state)
        ctx.text, ctx.chain = text, len(chain)
        return merged

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        spread, keys, values, out, ends, places, query, merged, *rest = ctx.saved_tensors
        chain, state = rest[: ctx.chain], rest[ctx.chain :]
        grad = grad.contiguous()
        spread_grad = torch.zeros_like(spread).index_copy_(0, places, grad)
        of_text, key_grad, value_grad = ctx.text.backward(spread_grad, spread, keys, values, out, ends, state)
        if not chain:
            return of_text.index_select(0, places), key_grad, value_grad, None, None
        stacked = torch.stack(chain[::2]), torch.stack(chain[1::2])
        query_grad, *pairs = ctx.text.derive(grad, merged, query.contiguous(), *stacked, places, ends, of_text)
        own = [each for pair in zip(*pairs, strict=True) for each in pair]
        return query_grad, key_grad, value_grad, None, None, *own


def merge_plainly(query: Tensor, keys: Tensor, values: Tensor, places: Tensor, out: Tensor, ends: Tensor) -> Tensor:
    """As `slipstream_kernels.ops.gpu.chain_rows.merge_chain`, whose twin it is."""
    grouped = _grouped(query, keys)
    scores = (query.view(grouped).float() * keys[:, :, :, None]).sum(dim=-1) * query.shape[2] ** -0.5
    of_text = ends.index_select(0, places).view(grouped[:3])
    total = torch.logsumexp(torch.cat((of_text[None], scores)), dim=0)
    seen = out.index_select(0, places).view(grouped) * (of_text - total).exp_()[..., None]
    own = ((scores - total).exp_()[..., None] * values[:, :, :, None]).sum(dim=0)
    merged: Tensor = (seen + own).to(query.dtype).view_as(query)
    out.index_copy_(0, places, merged)
    ends.index_copy_(0, places, total.flatten(1))
    return merged


def derive_plainly(
    grad: Tensor,
    merged: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    ends: Tensor,
    of_text: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `slipstream_kernels.ops.gpu.chain_rows.derive_chain`, whose twin it is."""
    grouped, scale = _grouped(query, keys), query.shape[2] ** -0.5
    asked, given = query.view(grouped).float(), grad.view(grouped).float()
    total = ends.index_select(0, places).view(grouped[:3])
    shares = ((asked * keys[:, :, :, None]).sum(dim=-1) * scale - total).exp_()
    common = (given * merged.view(grouped)).sum(dim=-1)
    errors = shares * ((given * values[:, :, :, None]).sum(dim=-1) - common) * scale
    own = (errors[..., None] * keys[:, :, :, None]).sum(dim=0).view_as(query)
    of_query = (of_text.index_select(0, places) + own).to(query.dtype)
    of_keys = (errors[..., None] * asked).sum(dim=3).to(query.dtype)
    return of_query, of_keys, (shares[..., None] * given).sum(dim=3).to(query.dtype)


def _grouped(query: Tensor, keys: Tensor) -> tuple[int, int, int, int]:
    """[n, kv_heads, g, head_dim], with g queries a key; keys [steps, n, kv_heads, head_dim]."""
    n, heads, dim = query.shape
    return n, keys.shape[2], heads // keys.shape[2], dim


class _Masked:
    """On CPUs: rows of the batch under a mask."""

    merge, derive = staticmethod(merge_plainly), staticmethod(derive_plainly)

    def __init__(self, batch: Batch) -> None:
        documents = batch.documents
        self._shape = documents.shape
        same = (documents[:, :, None] == documents[:, None, :]).tril()
        self._mask = torch.zeros_like(same, dtype=batch.states.dtype).masked_fill_(~same, -torch.inf)[:, None]

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        """Values seen [B * L, heads, head_dim] and logarithms of normalisers [B * L, heads], in memory of their own,
        and what `backward` wants beside them; of queries of the values' shape.
        """
        heads = query.shape[1]
        out, ends = _ON_CPU(*(self._rows(each, heads) for each in (query, keys, values)), attn_mask=self._mask)
        return self._flat(out), ends.transpose(1, 2).flatten(0, 1).contiguous(), ()

    def backward(
        self, grad: Tensor, query: Tensor, keys: Tensor, values: Tensor, out: Tensor, ends: Tensor, _: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, keys and values, where `out` and `ends` take more into account than the text."""
        heads, kv_heads = query.shape[1], keys.shape[1]
        rows = [self._rows(each, heads) for each in (grad, query, keys, values, out)]
        normalisers = ends.view(*self._shape, heads).transpose(1, 2).contiguous()
        grads = _ON_CPU_BACKWARD(*rows, normalisers, 0.0, False, attn_mask=self._mask)
        of_query, of_keys, of_values = (self._flat(each) for each in grads)
        grouped = (len(keys), kv_heads, -1, keys.shape[2])
        return of_query, of_keys.view(grouped).sum(dim=2), of_values.view(grouped).sum(dim=2)

    def _rows(self, flat: Tensor, heads: int) -> Tensor:
        """[B, heads, L, head_dim]"""
        return flat.view(*self._shape, *flat.shape[1:]).transpose(1, 2).repeat_interleave(heads // flat.shape[1], dim=1)

    def _flat(self, rows: Tensor) -> Tensor:
        """[B * L, heads, head_dim]"""
        return rows.transpose(1, 2).flatten(0, 1).contiguous()


class _Segments:
    """On GPUs: FlashAttention over sequences side by side, of any lengths. Functions as those of `_Masked`."""

    def __init__(self, batch: Batch) -> None:
        self._ends, self._longest = batch.ends, batch.longest

    def merge(self, query: Tensor, *others: Tensor) -> Tensor:
        from slipstream_kernels.ops.gpu.chain_rows import merge_chain  # brings triton

        return (merge_chain if _is_power_of_two(query.shape[2]) else merge_plainly)(query, *others)

    def derive(self, grad: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from slipstream_kernels.ops.gpu.chain_rows import derive_chain  # brings triton

        return (derive_chain if _is_power_of_two(grad.shape[2]) else derive_plainly)(grad, *others)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        ends, most = self._ends, self._longest
        out, normalisers, *state = _ON_GPU(query, keys, values, ends, ends, most, most, 0.0, True, False)
        return out, normalisers.mT.contiguous(), state[:2]

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        ends: Tensor,
        state: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        edges, most = self._ends, self._longest
        with _reproducible():
            grads: tuple[Tensor, Tensor, Tensor] = _ON_GPU_BACKWARD(
                grad, query, keys, values, out, ends.mT.contiguous(), edges, edges, most, most, 0.0, True, *state
            )
        return grads


def _is_power_of_two(dim: int) -> bool:
    """As the kernels of chains want head_dim."""
    return dim.bit_count() == 1


_Text = _Masked | _Segments


@contextmanager
def _reproducible() -> Iterator[None]:
    """Sums are taken in one order, without which equal runs part ways."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
