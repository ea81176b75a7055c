"""Tensors of a widened model, and of a random one, by their names in a Hugging Face folder, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from pathlib import Path

import torch

from benchmarks.inflate.dense_as_mixture import as_experts, as_mixture
from benchmarks.inflate.expert_widening import ExpertWidening
from benchmarks.inflate.shape import ExpertLayout, Shape, check
from benchmarks.inflate.shape_family import as_published, family_config
from benchmarks.inflate.widening import Widening, normal
from slipstream_kernels.models.checkpoint.model_config import ModelConfig, read_json
from slipstream_kernels.models.checkpoint.tensor_names import expected_shapes, stored_name, stored_shapes
from slipstream_kernels.models.checkpoint.tied_head import HEAD
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors


class Inflation:
    """A model of `shape` that computes what the model in `folder` computes. Raises ShapeError, CheckpointError."""

    def __init__(self, folder: Path, shape: Shape, *, device: torch.device | str = "cpu", seed: int = 0) -> None:
        stored = ModelConfig.from_folder(folder)
        source = stored if shape.family else as_mixture(stored, shape)
        check(source, shape)
        self.config = shape.config(source)
        self._widening = widening = Widening.of(source, shape, device=device, seed=seed)
        experts = source.form.experts
        self._experts: ExpertWidening | None = None
        if experts is not None:
            self._experts = ExpertWidening(widening, ExpertLayout.of(experts, shape, widening.stream))
        tensors = {name: tensor.to(device) for name, tensor in load_tensors(folder, stored).items()}
        self._tensors = tensors if source is stored else as_experts(tensors, source)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and bfloat16 tensor, in the order of `expected_shapes`; each is made when it is asked for."""
        for name, shape in expected_shapes(self.config):
            yield name, self._tensor(name, shape)

    def embedding(self) -> torch.Tensor:
        """Rows by token, bfloat16 [vocabulary, hidden]."""
        return self._tensor("model.embed_tokens.weight", (self.config.vocab_size, self.config.hidden_size))

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        kind, widening, source = name.split(".")[-2], self._widening, self._tensors.get(name)
        if kind == "lm_head":
            rows = self._tensors["model.embed_tokens.weight"] if source is None else source
            return widening.scores(name, rows, shape)
        if kind == "embed_tokens":
            assert source is not None
            rows = widening.embedding(source, shape)
            return rows if self._experts is None else self._experts.embedding(rows, len(source))
        if kind in ("q_norm", "k_norm"):
            return torch.ones(shape, dtype=torch.bfloat16, device=widening.device) if source is None else source
        if self._experts is not None and kind == "gate":
            return self._experts.router(name, int(name.split(".")[2]), source, shape)
        if self._experts is not None and ".experts." in name:
            return self._experts.expert(name, self._tensors, shape)
        if self._experts is not None and kind == "post_attention_layernorm" and source is not None:
            return self._experts.norm(widening.norm(source, shape))
        if kind.endswith("norm"):
            return widening.norm(source, shape, final=name == "model.norm.weight")
        if kind == "o_proj":
            return widening.attention_writer(source, shape)
        if kind == "down_proj":
            return widening.writer(source, shape)
        return widening.reader(name, source, shape, heads=kind == "q_proj")


class RandomModel:
    """A model of `shape` whose weights are all random, with the constants of the model in `folder`.

    Linear layers keep the variance of their input; those that write the stream are damped by the number of layers, so
    that it stays of the order of 1. Logits are about standard normal; where greedy answers are to be `readable`, those
    beyond the vocabulary of the model in `folder` are a sixteenth of that, as its tokenizer has no text for them.
    """

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        readable: bool = False,
    ) -> None:
        stored = ModelConfig.from_folder(folder)
        if shape.family:
            self.config = family_config(shape, read_json(folder / "config.json"))
        else:
            self.config = shape.config(as_mixture(stored, shape))
        self._device = torch.device(device)
        self._seed = seed
        self._loud = stored.vocab_size if readable else self.config.vocab_size

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and bfloat16 tensor, in the order of `expected_shapes`; each is made when it is asked for."""
        for name, shape in expected_shapes(self.config):
            yield name, self._drawn(name, shape)

    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The same by the names, and in the layout, that the family's folders have in bfloat16."""
        config = as_published(self.config)
        parts: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        for name, shape in expected_shapes(config):
            parts.setdefault(stored_name(config, name), []).append((name, shape))
        for stored, shape in stored_shapes(config):
            if len(shape) < 3:
                ((name, _),) = parts[stored]
                yield stored, self._drawn(name, shape)
                continue
            # Experts of a Llama-4's layer: inputs come first, gate and up lie beside one another.
            whole = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
            of_one = len(parts[stored]) // shape[0]
            for expert, out in enumerate(whole):
                own = parts[stored][expert * of_one : (expert + 1) * of_one]
                torch.cat([self._drawn(*each).t() for each in own], dim=1, out=out)
            yield stored, whole

    def embedding(self) -> torch.Tensor:
        """Rows by token, bfloat16 [vocabulary, hidden]."""
        return self._drawn("model.embed_tokens.weight", (self.config.vocab_size, self.config.hidden_size))

    def _drawn(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = normal(name, shape, self._scale(name, shape), seed=self._seed, device=self._device)
        if name == HEAD:
            tensor[self._loud :] /= 16
        return tensor.add_(1.0) if name.endswith("norm.weight") else tensor

    def _scale(self, name: str, shape: tuple[int, ...]) -> float:
        if name.endswith("norm.weight"):
            return 0.1
        if "embed_tokens" in name:
            return 1.0
        damping = 2 * self.config.num_layers if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
        return 1.0 / sqrt(shape[-1] * damping)


TensorSource = Inflation | RandomModel


def source_of(kind: str, folder: Path, shape: Shape, *, device: torch.device | str, seed: int = 0) -> TensorSource:
    """An inflated or a random model by its name on the command line."""
    kinds: Mapping[str, type[TensorSource]] = {"inflated": Inflation, "random": RandomModel}
    return kinds[kind](folder, shape, device=device, seed=seed)
