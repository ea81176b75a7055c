"""Draft models: distillation of the target into a small causal language model (arXiv 2310.08461), answers alone."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.model_form import PLAIN
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from training.common.attention_masks import block_mask, dense_mask
from training.common.model import CausalLM, initialise
from training.common.model_shape import ModelShape
from training.fit.batch import Batch
from training.fit.cross_entropy import soft_cross_entropy
from training.fit.families.last_state import LastStateFamily
from training.fit.family import Findings
from training.fit.plan import Survey
from training.fit.settings import FitSettings
from training.fit.target import TargetRows


class DraftModel(LastStateFamily):
    """The family. A draft model reads tokens alone, so one step teaches all; the chain is what is simulated."""

    usual_steps = 1

    def __init__(self, settings: FitSettings) -> None:
        super().__init__(settings)
        if settings.start is None:
            raise ValueError("start: name the folder of the draft model to begin with")
        if settings.intermediate_size:
            raise ValueError("intermediate_size: a draft model has the shape of the one to begin with")
        if settings.unroll > 1:
            raise ValueError("unroll: a draft model learns every step in one")

    def head(self, target: TargetRows, final: slice) -> DraftModelHead:
        """As `LastStateFamily` has it."""
        return DraftModelHead(target, self.settings, final)


class DraftModelHead:
    """A Llama with tied embeddings and the target's vocabulary."""

    repeats = False

    def __init__(self, target: TargetRows, settings: FitSettings, final: slice) -> None:
        assert settings.start is not None
        config = ModelConfig.from_folder(settings.start)
        if config.vocab_size != target.config.vocab_size:
            raise ValueError(
                f"start has a vocabulary of {config.vocab_size}, the target's is {target.config.vocab_size}"
            )
        if config.max_context < settings.row_length:
            raise ValueError(f"row_length is {settings.row_length}, start has a context of {config.max_context}")
        self._target, self._final, self._start = target, final, settings.start
        self._argmax_weight = settings.argmax_weight
        self.model = CausalLM(_shape(config), target.embedding.dtype)
        if settings.init == "random":
            initialise(self.model, settings.seed)
        else:
            tensors = load_tensors(settings.start, config)
            self.model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        self.model.to(target.embedding.device)

    @property
    def module(self) -> nn.Module:
        return self.model

    def look(self, batch: Batch, counts: Tensor, *, steps: int, noise: int | None) -> Findings:
        """As `training.fit.family.Head` has it.

        Step k at position i is what position i + k gives at step 0, as tokens are all that is read.
        """
        reach = batch.reach.flatten()
        flat = batch.at(0)
        hidden = _hidden(self.model, batch).index_select(0, flat + 1)
        truth = batch.states.flatten(0, 1).index_select(0, flat + 1)[:, self._final]
        verdict = self._target.judge(truth, None, self._argmax_weight)
        weights = counts[0].clamp(min=1).reciprocal().expand(len(flat))
        places = torch.arange(len(flat), device=flat.device)
        loss, losses, best = soft_cross_entropy(
            hidden, self.model.model.embed_tokens.weight, verdict.probabilities, places, weights
        )
        right = torch.zeros_like(reach, dtype=torch.bool).index_copy(0, flat, best == verdict.best)
        lost = torch.zeros(len(reach), device=losses.device).index_copy(0, flat, losses)
        follows = verdict.best == batch.tokens.flatten()[flat + 2]
        agrees = torch.zeros_like(right).index_copy(0, flat, follows)
        counting = [reach > step for step in range(steps)]
        hits = torch.stack([_ahead(right, step) & counts_here for step, counts_here in enumerate(counting)])
        sums = torch.stack([(_ahead(lost, step) * counts_here).sum() for step, counts_here in enumerate(counting)])
        shape = batch.tokens.shape
        return Findings(loss, sums, hits.sum(dim=1), hits.view(steps, *shape), agrees.view(shape))

    def tensors(self) -> dict[str, Tensor]:
        """As `training.fit.family.Head` has it."""
        return {name: tensor.detach().cpu() for name, tensor in self.model.state_dict().items()}

    def config(self) -> dict[str, Any]:
        """As `training.fit.family.Head` has it."""
        config: dict[str, Any] = json.loads((self._start / "config.json").read_bytes())
        return config

    def describe(self, survey: Survey) -> dict[str, Any]:
        """As `training.fit.family.Head` has it."""
        return {"parameters": sum(parameter.numel() for parameter in self.model.parameters())}


def _shape(config: ModelConfig) -> ModelShape:
    """ValueError for a model of another kind."""
    plain = config.family == "llama" and config.form == PLAIN and config.rope.scaling is None
    if not plain or not config.tie_word_embeddings:
        raise ValueError("start: only Llamas with tied embeddings and plain rotary positions are trained")
    return ModelShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=config.num_layers,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        max_positions=config.max_context,
        rope_theta=config.rope.theta,
        rms_norm_eps=config.rms_norm_eps,
    )


def _hidden(model: CausalLM, batch: Batch) -> Tensor:
    """Normed states [B * L, hidden]; sequences of a row do not see one another."""
    # Padding has a number of its own behind all others, as numbers must not fall along a row.
    documents = torch.where(batch.documents < 0, batch.documents.shape[1], batch.documents)
    blocks = documents.is_cuda and documents.shape[1] % 128 == 0
    mask = block_mask(documents) if blocks else dense_mask(documents)
    return model.hidden(batch.tokens, mask).flatten(0, 1)


def _ahead(of_positions: Tensor, step: int) -> Tensor:
    """Those of the positions `step` further on; what lies beyond the end is nobody's."""
    return of_positions.roll(-step)
