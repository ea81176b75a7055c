"""Hugging Face transformers generating greedily on a GPU from the same tensors, one stream."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import torch


class TransformersModel:
    """A model of transformers over given bfloat16 tensors. Nothing is copied that is on the device already."""

    def __init__(
        self, config: Mapping[str, Any], tensors: Iterable[tuple[str, torch.Tensor]], device: torch.device | str
    ) -> None:
        """`config` holds the fields of a config.json."""
        transformers: Any = import_module("transformers")  # its types do not stand strict checking
        self.version = str(transformers.__version__)
        settings = transformers.AutoConfig.for_model(**config)
        with torch.device("meta"):
            self._model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)
        self._model.load_state_dict({name: tensor.to(device) for name, tensor in tensors}, assign=True)
        # Frequencies are no part of the weights, so they are still without values.
        rotary = self._model.model.rotary_emb
        self._model.model.rotary_emb = type(rotary)(settings).to(device)
        self._model.eval()
        self._model.generation_config.eos_token_id = None
        self._device = device

    def step_seconds(self, prompt: tuple[int, ...], tokens: int) -> float:
        """Seconds a token of plain decoding: what `tokens` + 1 new tokens take beyond 1."""
        self._generate(prompt, 2)
        return (self._generate(prompt, tokens + 1) - self._generate(prompt, 1)) / tokens

    def _generate(self, prompt: tuple[int, ...], tokens: int) -> float:
        ids = torch.tensor([prompt], device=self._device)
        begun = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
            )
        assert output.shape[1] == ids.shape[1] + tokens  # reading the shape does not wait, the line below does
        output.cpu()
        return time.perf_counter() - begun
