"""What training needs of the target: its embedding, its scores, and the weights of one layer to begin with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import iterate_tensors, stored_as_computed, weight_files

SCORES: Final = "lm_head.weight"
"""Rows that score tokens, of a target as of an EAGLE-3 head."""
_EMBEDDING, _NORM = "model.embed_tokens.weight", "model.norm.weight"
_CHUNK_BYTES = {"cpu": 1 << 25, "cuda": 1 << 30}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's distribution at some positions. probabilities [n, scored tokens], renormalised over these;
    best int64 [n]: its most likely token of all.
    """

    probabilities: Tensor
    best: Tensor


class TargetRows:
    """Frozen rows of a Hugging Face folder, on the training device in the type that is computed in."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Raises CheckpointError."""
        self.folder = folder
        self.config = ModelConfig.from_folder(folder)
        form = self.config.form
        if form.embed_scale != 1 or form.logit_cap:
            raise CheckpointError(
                f"{folder}: no heads are trained for a {self.config.family}: it scales embeddings, or bounds logits"
            )
        names = (_EMBEDDING,) if self.config.tie_word_embeddings else (_EMBEDDING, SCORES)
        found = self._read(names)
        self.embedding = found[_EMBEDDING].to(device, dtype)
        self.head = self.embedding if len(names) == 1 else found[SCORES].to(device, dtype)

    def last_layer(self) -> dict[str, Tensor]:
        """Float32 weights of the last layer by their names within it, and the final norm as `norm.weight`.

        Those of the feed-forward network are missing where experts stand in its place.
        """
        last = self.config.num_layers - 1
        prefix = f"model.layers.{last}."
        names = ["input_layernorm", "post_attention_layernorm", *(f"self_attn.{each}_proj" for each in "qkvo")]
        if not self.config.has_experts(last):
            names += [f"mlp.{each}_proj" for each in ("gate", "up", "down")]
        found = self._read([_NORM, *(f"{prefix}{name}.weight" for name in names)])
        return {name.removeprefix(prefix).removeprefix("model."): tensor.float() for name, tensor in found.items()}

    def final_norm(self) -> Tensor:
        """Float32 weight of the norm behind the last layer, [hidden]."""
        return self._read((_NORM,))[_NORM].float()

    def _read(self, names: Collection[str]) -> dict[str, Tensor]:
        """Those of the target's tensors, quantised ones decoded."""
        if self.config.quantisation is None and stored_as_computed(self.config):
            return read_named(self.folder, names)
        return dict(iterate_tensors(self.folder, self.config, names))

    def logits(self, states: Tensor) -> Tensor:
        """float32 [n, vocabulary] of states after the final norm [n, hidden]."""
        return F.linear(states, self.head).float()

    @torch.no_grad()
    def judge(self, states: Tensor, ids: Tensor | None, argmax_weight: float = 0.0) -> Verdict:
        """The distribution over the tokens `ids` (None: all) at states after the final norm [n, hidden].

        `argmax_weight` of it is moved to the most likely of them, which is what temperature 0 asks for.
        """
        chunk = max(1, _CHUNK_BYTES.get(states.device.type, 1 << 25) // (4 * len(self.head)))
        probabilities, best = [], []
        for part in states.split(chunk):
            logits = self.logits(part)
            best.append(logits.argmax(dim=-1))
            scored = logits if ids is None else logits.index_select(1, ids)
            wanted = scored.softmax(dim=-1)
            if argmax_weight:
                moved = wanted.new_full((len(wanted), 1), argmax_weight)
                wanted = (wanted * (1 - argmax_weight)).scatter_add_(1, scored.argmax(dim=-1, keepdim=True), moved)
            probabilities.append(wanted.to(states.dtype))
        return Verdict(torch.cat(probabilities), torch.cat(best))


def read_named(folder: Path, names: Collection[str]) -> dict[str, Tensor]:
    """Tensors of a folder by name, as they are stored. Raises CheckpointError if one is missing."""
    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                here = set(file.keys())
                found |= {name: file.get_tensor(name) for name in names if name in here}
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: {error}") from error
    if missing := [name for name in names if name not in found]:
        raise CheckpointError(f"{folder}: {missing[0]} is missing")
    return found
