"""How the tensors of a mixture's layers are widened: routers, experts, and what tells a token's variants."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from benchmarks.inflate.shape import ExpertLayout
from benchmarks.inflate.widening import MARK_EMBEDDING, MARK_HEAD, MARK_NORM, Widening

_PRIMES = (2_654_435_761, 40_503)


class ExpertWidening:
    """Widens tensors of the layers that a source has, by `layout`; all that it returns is bfloat16."""

    def __init__(self, widening: Widening, layout: ExpertLayout) -> None:
        self._widening, self._layout = widening, layout

    def router(self, name: str, layer: int, source: torch.Tensor | None, shape: tuple[int, ...]) -> torch.Tensor:
        """Rows by expert. Clones score as their expert does, but far below in variants that a token has not."""
        out = self._widening.reader(name, None, shape)
        if source is None:
            return out
        layout = self._layout
        out[:] = 0
        clones = source.repeat_interleave(layout.variants * layout.copies, dim=0)
        out[:, self._widening.columns(1)] = clones
        if layout.sets:
            way = layout.first + layer % layout.sets * layout.variants
            rows = torch.arange(len(out), device=out.device)
            out[rows, way + rows // layout.copies % layout.variants] = MARK_HEAD
        return out

    def expert(self, name: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        """A projection `model.layers.L.mlp.experts.E.X_proj.weight`; all clones of an expert compute the same."""
        head, _, tail = name.partition(".experts.")
        number, _, projection = tail.partition(".")
        layout = self._layout
        source = tensors.get(f"{head}.experts.{int(number) // (layout.variants * layout.copies)}.{projection}")
        if projection.startswith("down_proj"):
            return self._widening.writer(source, shape)
        out = self._widening.reader(name, source, shape)
        out[:, layout.marks] = 0
        return out

    def norm(self, out: torch.Tensor) -> torch.Tensor:
        """The weights of the norm in front of a router, which lift what tells variants."""
        out[self._layout.marks] = MARK_NORM
        return out

    def embedding(self, out: torch.Tensor, tokens: int) -> torch.Tensor:
        """Rows by token; the first `tokens` tell which variants are not theirs."""
        layout = self._layout
        ids = torch.arange(tokens, device=out.device)
        for way in range(layout.sets):
            drawn = (ids * _PRIMES[0] + (way + 1) * (ids // 7 + _PRIMES[1])) // 97 % layout.variants
            for variant in range(layout.variants):
                out[:tokens, layout.first + way * layout.variants + variant] = MARK_EMBEDDING * (drawn != variant)
        return out
