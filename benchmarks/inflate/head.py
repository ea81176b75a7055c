"""Tensors of an EAGLE-3 head (arXiv 2503.01840) that is widened with its target, and of a random one of the same shape.

Names and config.json are those of the public checkpoints of one layer (`midlayer`). A widened head works on the
widened target's stream: fc reads block 0 of each boundary's states and writes a stream of the same layout, so that its
own mean of squares is the small head's, and what it hands to its children is laid out like what it was handed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod, sqrt
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from benchmarks.inflate.dense_as_mixture import as_mixture
from benchmarks.inflate.shape import Shape, ShapeError, check
from benchmarks.inflate.widening import Widening, normal
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig, read_json
from slipstream_kernels.models.checkpoint.model_form import PLAIN
from slipstream_kernels.models.checkpoint.weight_loader import iterate_tensors, weight_files

DRAFT_VOCAB = 32_000
_IDS = "eagle_aux_hidden_state_layer_ids"
_MAPS = ("d2t", "t2d")
_FC, _SCORES = "fc.weight", "lm_head.weight"
_UNSUPPORTED = ("norm_before_residual", "norm_before_fc", "fc_norm", "target_hidden_size")

Shapes = dict[str, tuple[int, ...]]


class HeadSource(Protocol):
    """A head of one shape: what goes into its folder."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor; each is made when it is asked for."""
        ...

    def config_json(self) -> dict[str, Any]:
        """The fields of config.json."""
        ...


def head_shapes(shape: Shape, states: int, entries: int) -> Shapes:
    """Name and shape of every weight of a head that reads `states` boundaries and scores `entries` tokens."""
    hidden, middle = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    layer: Shapes = {
        "hidden_norm": (hidden,),
        "input_layernorm": (hidden,),
        "mlp.down_proj": (hidden, middle),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "post_attention_layernorm": (hidden,),
        "self_attn.k_proj": (keys, 2 * hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_proj": (queries, 2 * hidden),
        "self_attn.v_proj": (keys, 2 * hidden),
    }
    named = {f"midlayer.{name}.weight": size for name, size in layer.items()}
    return {_FC: (hidden, states * hidden), _SCORES: (entries, hidden), **named, "norm.weight": (hidden,)}


def read_bytes(shape: Shape, *, states: int, entries: int, passes: int, context: int) -> int:
    """Bytes that one tree's passes must read: fc once, all else and the context's keys and values in each pass."""
    sizes = {name: 2 * prod(size) for name, size in head_shapes(shape, states, entries).items()}
    first = sizes.pop(_FC)
    return first + passes * (sum(sizes.values()) + 4 * shape.num_kv_heads * shape.head_dim * context)


class HeadInflation:
    """A head of `shape` that computes what the head in `folder` computes for the model in `model`, as widened to it.

    Raises ShapeError for heads of other layouts and shapes that do not hold it, CheckpointError.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        shape: Shape,
        *,
        entries: int = DRAFT_VOCAB,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """entries: tokens that it scores."""
        target = ModelConfig.from_folder(model)
        check(as_mixture(target, shape), shape)
        shape = shape.head
        self._config = read_json(folder / "config.json")
        read = _read_all(folder)
        if _SCORES not in read and not any(name in read for name in _MAPS):
            read[_SCORES] = _target_scores(model, target)
        self._ids = _target_ids(read, target.vocab_size)
        self._tensors = {name: tensor.to(device, torch.bfloat16) for name, tensor in read.items() if name not in _MAPS}
        self.boundaries = self._checked(target, shape, entries)
        self._widening = Widening.of(_head_config(target, self._config), shape, device=device, seed=seed)
        self._shape, self._entries = shape, entries

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `HeadSource` has it: bfloat16 weights, then the maps."""
        for name, size in head_shapes(self._shape, len(self.boundaries), self._entries).items():
            yield name, self._tensor(name, size)
        spare = torch.arange(self._entries - len(self._ids)) + self._widening.source.vocab_size
        yield from _maps(torch.cat([self._ids, spare]), self._shape.vocab_size)

    def config_json(self) -> dict[str, Any]:
        """As `HeadSource` has it."""
        return _config_json(self._config, self._shape, self._entries, self.boundaries)

    def _tensor(self, name: str, size: tuple[int, ...]) -> torch.Tensor:
        widening, source, kind = self._widening, self._tensors[name], name.split(".")[-2]
        if name == _FC:
            out = widening.writer(source, size, widening.columns(len(self.boundaries)))
            if widening.marked:  # the first boundary's mark becomes the head's own
                out[widening.stream.mark, widening.stream.mark] = 1.0
            return out
        if name == _SCORES:
            return widening.scores(name, source, size)
        if kind.endswith("norm"):
            return widening.norm(source, size, final=name == "norm.weight")
        if kind == "o_proj":
            return widening.attention_writer(source, size)
        if kind == "down_proj":
            return widening.writer(source, size)
        return widening.reader(name, source, size, heads=kind == "q_proj")

    def _checked(self, target: ModelConfig, shape: Shape, entries: int) -> tuple[int, ...]:
        """The boundaries that the head reads; ShapeError where it cannot be widened."""
        config, hidden = self._config, target.hidden_size
        for name in _UNSUPPORTED:
            if config.get(name) not in (None, False, hidden):
                raise ShapeError(f"the head's config.json has {name}: heads of that kind are not widened")
        own = Shape(
            hidden_size=config.get("hidden_size", 0),
            num_heads=config.get("num_attention_heads", 0),
            num_kv_heads=config.get("num_key_value_heads", 0),
            head_dim=config.get("head_dim", 0),
            intermediate_size=config.get("intermediate_size", 0),
        )
        states = self._tensors[_FC].shape[1] // hidden if _FC in self._tensors else 0
        expected = head_shapes(own, states, len(self._ids))
        found = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        if found != expected or own.hidden_size != hidden:
            odd = sorted({*found.items()} ^ {*expected.items()})
            raise ShapeError(f"the head is no EAGLE-3 head of one layer for this model: {odd[:4]}")
        check(_head_config(target, config), shape)
        if len(self._ids) > entries:
            raise ShapeError(f"the head scores {len(self._ids)} tokens, which cannot become {entries}")
        if entries - len(self._ids) > shape.vocab_size - target.vocab_size:
            spare = shape.vocab_size - target.vocab_size
            raise ShapeError(f"the head scores {len(self._ids)} tokens; {entries} need more than {spare} spare ids")
        read = config.get(_IDS) or (2, target.num_layers // 2, target.num_layers - 3)
        if len(set(read)) != states or not all(0 <= boundary <= target.num_layers for boundary in read):
            raise ShapeError(f"the head reads {states} states, its boundaries are {list(read)}")
        return tuple(read)


class RandomHead:
    """A head whose weights are all random, which reads `boundaries` of a target of `shape`."""

    def __init__(
        self,
        model: Path,
        shape: Shape,
        boundaries: Sequence[int],
        *,
        entries: int = DRAFT_VOCAB,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """model: folder whose constants it has."""
        self._config = read_json(model / "config.json")
        self._shape, self._entries, self._device, self._seed = shape.head, entries, device, seed
        self.boundaries = tuple(boundaries)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `HeadSource` has it. Linear layers keep the variance of their input."""
        for name, size in head_shapes(self._shape, len(self.boundaries), self._entries).items():
            scale = 0.1 if len(size) == 1 else 1.0 / sqrt(size[-1])
            tensor = normal(f"head {name}", size, scale, seed=self._seed, device=self._device)
            yield name, tensor.add_(1.0) if len(size) == 1 else tensor
        generator = torch.Generator().manual_seed(self._seed)
        ids = torch.randperm(self._shape.vocab_size, generator=generator)[: self._entries].sort().values
        yield from _maps(ids, self._shape.vocab_size)

    def config_json(self) -> dict[str, Any]:
        """As `HeadSource` has it."""
        return _config_json(self._config, self._shape, self._entries, self.boundaries)


def _maps(ids: torch.Tensor, vocab_size: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Offsets by entry and mask by token, from the target's id of each entry."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[ids] = True
    yield "d2t", ids - torch.arange(len(ids))
    yield "t2d", mask


def _target_ids(tensors: Mapping[str, torch.Tensor], vocab_size: int) -> torch.Tensor:
    """The target's id of each entry, int64."""
    if "d2t" in tensors:
        return torch.arange(len(tensors["d2t"])) + tensors["d2t"].to(torch.int64)
    return torch.arange(vocab_size)


def _target_scores(model: Path, config: ModelConfig) -> torch.Tensor:
    """The model's own scoring rows, [vocabulary, hidden], which heads without rows and maps score with."""
    wanted = "model.embed_tokens.weight" if config.tie_word_embeddings else _SCORES
    return next(tensor for name, tensor in iterate_tensors(model, config) if name == wanted)


def _head_config(target: ModelConfig, config: Mapping[str, Any]) -> ModelConfig:
    """The head as a model of one layer."""
    return replace(
        target,
        form=PLAIN,
        num_layers=1,
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        intermediate_size=config["intermediate_size"],
    )


def _config_json(source: Mapping[str, Any], shape: Shape, entries: int, boundaries: Sequence[int]) -> dict[str, Any]:
    return shape.config_json(source) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": entries,
        "target_hidden_size": shape.hidden_size,
        _IDS: list(boundaries),
    }


def _read_all(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no mapping)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: {error}") from error
    return tensors
