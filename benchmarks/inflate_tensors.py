"""Tensors of a widened model, and of a random one, by their names in a Hugging Face folder, on any device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from math import sqrt
from pathlib import Path

import torch

from benchmarks.inflate_shape import Shape, Stream, check
from slipstream_kernels.models.checkpoint import expected_shapes, load_tensors
from slipstream_kernels.models.config import ModelConfig

FILL = 0.02
"""Standard deviation of weights that fill what the source does not: those that nothing reads."""

MARK_EMBEDDING = 2.0**-14
MARK_NORM = 2.0**28
MARK_HEAD = -64.0
"""A coordinate of the stream that every token's embedding sets and no layer reads or writes. The final norm lifts it to
2^14 over the stream's root mean square, and rows of the output layer beyond the source's vocabulary carry it with
this weight: logits of -2^20 over that root, never above -1000 while it is below 1000, and zero probability at any
temperature. Its square is 2^-28, which no mean of squares notices."""


class Inflation:
    """A model of `shape` that computes what the model in `folder` computes.

    Real parts of the stream, heads, layers, feed-forward width and vocabulary come first in each dimension. What is
    added is random and without effect: rows that write the stream hold zero for it, and columns that read the stream
    meet zeros, because the norms' weights are zero there. Raises ShapeError, CheckpointError.
    """

    def __init__(self, folder: Path, shape: Shape, *, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self._source = ModelConfig.from_folder(folder)
        check(self._source, shape)
        self.config = shape.config(self._source)
        self._shape = shape
        self._stream = Stream.layout(self._source.hidden_size, shape.hidden_size)
        self._tensors = {name: tensor.to(device) for name, tensor in load_tensors(folder, self._source).items()}
        self._device = torch.device(device)
        self._seed = seed

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and bfloat16 tensor, in the order of `expected_shapes`; each is made when it is asked for."""
        for name, shape in expected_shapes(self.config):
            yield name, self._tensor(name, shape)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        kind = name.split(".")[-2]
        if name == "lm_head.weight":
            return self._head(shape)
        source = self._tensors.get(name)
        if kind == "embed_tokens":
            assert source is not None
            return self._embedding(source, shape)
        if kind.endswith("norm"):
            return self._norm(source, shape, final=name == "model.norm.weight")
        if kind in ("o_proj", "down_proj"):
            return self._writer(source, shape, self._heads(self._shape.group) if kind == "o_proj" else None)
        rows = self._heads(self._shape.group) if kind == "q_proj" else None
        return self._reader(source, self._random(name, shape), rows)

    def _reader(self, source: torch.Tensor | None, out: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """Columns of the stream's block 0 are the source's in the source's rows (`rows` says which those become)."""
        if source is not None:
            chosen = torch.arange(len(source), device=self._device) if rows is None else rows
            out[chosen, : source.shape[1]] = source
        return out

    def _writer(
        self, source: torch.Tensor | None, shape: tuple[int, ...], columns: torch.Tensor | None
    ) -> torch.Tensor:
        """Every block of the stream is written with its scale from the source's columns, all else with zero."""
        out = torch.zeros(shape, dtype=torch.bfloat16, device=self._device)
        if source is not None:
            chosen = torch.arange(source.shape[1], device=self._device) if columns is None else columns
            out[: len(self._stream.scales) * len(source), chosen] = self._scaled(source, 0)
        return out

    def _embedding(self, source: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        out = self._random("model.embed_tokens.weight", shape)
        known = out[: len(source)]
        known.zero_()
        known[:, : len(self._stream.scales) * source.shape[1]] = self._scaled(source, 1)
        if self._marked:
            known[:, self._stream.mark] = MARK_EMBEDDING
        return out

    def _norm(self, source: torch.Tensor | None, shape: tuple[int, ...], *, final: bool) -> torch.Tensor:
        out = torch.zeros(shape, dtype=torch.bfloat16, device=self._device)
        if source is None:
            return out.fill_(1.0)
        out[: len(source)] = source
        if final and self._marked:
            out[self._stream.mark] = MARK_NORM
        return out

    def _head(self, shape: tuple[int, ...]) -> torch.Tensor:
        source = self._tensors.get("lm_head.weight", self._tensors["model.embed_tokens.weight"])
        out = self._random("lm_head.weight", shape)
        rows, columns = source.shape
        out[:, :columns] = 0
        out[:rows, :columns] = source
        if self._marked:
            out[:rows, self._stream.mark] = 0
            out[rows:, self._stream.mark] = MARK_HEAD
        return out

    @property
    def _marked(self) -> bool:
        return self.config.vocab_size > self._source.vocab_size

    def _scaled(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """The stream's blocks one after the other along `dim`."""
        return torch.cat([(tensor.float() * scale).bfloat16() for scale in self._stream.scales], dim=dim)

    def _heads(self, group: int) -> torch.Tensor:
        """Where each feature of the source's query heads goes: a group keeps its key head and gets more members."""
        source = self._source
        has = source.num_heads // source.num_kv_heads
        heads = torch.arange(source.num_heads, device=self._device)
        first = (heads // has * group + heads % has) * source.head_dim
        return (first[:, None] + torch.arange(source.head_dim, device=self._device)).flatten()

    def _random(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return normal(name, shape, FILL, seed=self._seed, device=self._device)


class RandomModel:
    """A model of `shape` whose weights are all random, with the constants of the model in `folder`.

    Linear layers keep the variance of their input; those that write the stream are damped by the number of layers, so
    that it stays of the order of 1. Logits are about standard normal.
    """

    def __init__(self, folder: Path, shape: Shape, *, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.config = shape.config(ModelConfig.from_folder(folder))
        self._device = torch.device(device)
        self._seed = seed

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and bfloat16 tensor, in the order of `expected_shapes`; each is made when it is asked for."""
        for name, shape in expected_shapes(self.config):
            scale = self._scale(name, shape)
            tensor = normal(name, shape, scale, seed=self._seed, device=self._device)
            yield name, tensor.add_(1.0) if name.endswith("norm.weight") else tensor

    def _scale(self, name: str, shape: tuple[int, ...]) -> float:
        if name.endswith("norm.weight"):
            return 0.1
        if "embed_tokens" in name:
            return 1.0
        damping = 2 * self.config.num_layers if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
        return 1.0 / sqrt(shape[-1] * damping)


TensorSource = Inflation | RandomModel


def normal(name: str, shape: tuple[int, ...], scale: float, *, seed: int, device: torch.device | str) -> torch.Tensor:
    """Normal bfloat16 values that depend on seed, name and kind of device, not on what was drawn before."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest[:4], "little"))
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0.0, scale, generator=generator)


def source_of(kind: str, folder: Path, shape: Shape, *, device: torch.device | str, seed: int = 0) -> TensorSource:
    """An inflated or a random model by its name on the command line."""
    kinds: Mapping[str, type[TensorSource]] = {"inflated": Inflation, "random": RandomModel}
    return kinds[kind](folder, shape, device=device, seed=seed)
