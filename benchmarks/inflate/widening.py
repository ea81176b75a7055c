"""How the tensors of a decoder are widened: those that read its stream, those that write it, norms and scores.

Real parts of the stream, heads, feed-forward width and vocabulary come first in each dimension. What is added is random
and without effect: rows that write the stream hold zero for it, and columns that read the stream meet zeros, because
the norms' weights are zero there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from benchmarks.inflate.shape import Shape, Stream
from slipstream_kernels.models.checkpoint.model_config import ModelConfig

FILL = 0.02
"""Standard deviation of weights that fill what the source does not: those that nothing reads."""

MARK_EMBEDDING = 2.0**-14
MARK_NORM = 2.0**28
MARK_HEAD = -64.0
"""A coordinate of the stream that every token's embedding sets and no layer reads or writes. The final norm lifts it to
2^14 over the stream's root mean square, and rows of the output layer beyond the source's vocabulary carry it with
this weight: logits of -2^20 over that root, never above -1000 while it is below 1000, and zero probability at any
temperature. Its square is 2^-28, which no mean of squares notices."""


@dataclass(frozen=True, slots=True)
class Widening:
    """Widens tensors of a decoder of `source` to `shape`. All that it returns is bfloat16, on `device`.

    marked: the stream has the coordinate above, for vocabularies that grow.
    """

    source: ModelConfig
    shape: Shape
    stream: Stream
    marked: bool
    device: torch.device
    seed: int

    @classmethod
    def of(cls, source: ModelConfig, shape: Shape, *, device: torch.device | str, seed: int) -> Widening:
        """Raises ShapeError where the stream has no room."""
        stream = Stream.layout(source.hidden_size, shape.hidden_size)
        return cls(source, shape, stream, shape.vocab_size > source.vocab_size, torch.device(device), seed)

    def reader(
        self, name: str, source: torch.Tensor | None, shape: tuple[int, ...], *, heads: bool = False
    ) -> torch.Tensor:
        """A tensor that reads normalised streams, one or several side by side; with `heads`, queries are its rows."""
        out = self.random(name, shape)
        if source is None:
            return out
        rows = self._head_features() if heads else torch.arange(len(source), device=self.device)
        out[rows[:, None], self.columns(shape[1] // self.stream.target)] = source
        return out

    def writer(
        self, source: torch.Tensor | None, shape: tuple[int, ...], columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Every block of the stream is written with its scale from the source's columns, all else with zero.

        columns: which those become; None: the first.
        """
        out = torch.zeros(shape, dtype=torch.bfloat16, device=self.device)
        if source is not None:
            chosen = torch.arange(source.shape[1], device=self.device) if columns is None else columns
            out[: len(self.stream.scales) * len(source), chosen] = self._scaled(source, 0)
        return out

    def attention_writer(self, source: torch.Tensor | None, shape: tuple[int, ...]) -> torch.Tensor:
        """A `writer` whose columns are what attention's query heads return."""
        return self.writer(source, shape, self._head_features())

    def norm(self, source: torch.Tensor | None, shape: tuple[int, ...], *, final: bool = False) -> torch.Tensor:
        """A norm's weights; `final`: of the one before the scores."""
        out = torch.zeros(shape, dtype=torch.bfloat16, device=self.device)
        if source is None:
            return out.fill_(1.0)
        out[: len(source)] = source
        if final and self.marked:
            out[self.stream.mark] = MARK_NORM
        return out

    def embedding(self, source: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Rows by token that begin the stream."""
        out = self.random("model.embed_tokens.weight", shape)
        known = out[: len(source)]
        known.zero_()
        known[:, : len(self.stream.scales) * source.shape[1]] = self._scaled(source, 1)
        if self.marked:
            known[:, self.stream.mark] = MARK_EMBEDDING
        return out

    def scores(self, name: str, source: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Rows by token that score the stream after the final norm; those beyond the source's are never likely."""
        out = self.random(name, shape)
        rows, columns = source.shape
        out[:, :columns] = 0
        out[:rows, :columns] = source
        if self.marked:
            out[:rows, self.stream.mark] = 0
            out[rows:, self.stream.mark] = MARK_HEAD
        return out

    def columns(self, streams: int) -> torch.Tensor:
        """Where the coordinates of block 0 lie in so many streams side by side, int64."""
        first = torch.arange(streams, device=self.device) * self.stream.target
        return (first[:, None] + torch.arange(self.stream.source, device=self.device)).flatten()

    def random(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """What fills a tensor of that name."""
        return normal(name, shape, FILL, seed=self.seed, device=self.device)

    def _scaled(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """The stream's blocks one after the other along `dim`."""
        return torch.cat([(tensor.float() * scale).bfloat16() for scale in self.stream.scales], dim=dim)

    def _head_features(self) -> torch.Tensor:
        """Where each feature of the source's query heads goes: a group keeps its key head and gets more members."""
        source = self.source
        has = source.num_heads // source.num_kv_heads
        heads = torch.arange(source.num_heads, device=self.device)
        first = (heads // has * self.shape.group + heads % has) * source.head_dim
        return (first[:, None] + torch.arange(source.head_dim, device=self.device)).flatten()


def normal(name: str, shape: tuple[int, ...], scale: float, *, seed: int, device: torch.device | str) -> torch.Tensor:
    """Normal bfloat16 values that depend on seed, name and kind of device, not on what was drawn before."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest[:4], "little"))
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0.0, scale, generator=generator)
