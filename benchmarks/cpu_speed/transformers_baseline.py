"""Hugging Face transformers generating greedily on the CPU: one stream, a batch, and assisted generation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TransformersBaseline:
    """The pair of models in one dtype. Each method returns generated tokens a second, prompts' prefill included."""

    def __init__(self, target: Path, draft: Path, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._target = _load(target, DTYPES[dtype])
        self._draft = _load(draft, DTYPES[dtype])

    def single(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> float:
        """One prompt after the other."""
        start = time.perf_counter()
        for prompt in prompts:
            self._generate(torch.tensor([prompt]), torch.ones(1, len(prompt), dtype=torch.long), tokens)
        return len(prompts) * tokens / (time.perf_counter() - start)

    def batch(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> float:
        """All prompts in one batch, padded on the left."""
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        start = time.perf_counter()
        self._generate(ids, mask, tokens)
        return len(prompts) * tokens / (time.perf_counter() - start)

    def assisted(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> float:
        """One prompt after the other with the draft model as assistant, its settings as transformers ships them."""
        start = time.perf_counter()
        for prompt in prompts:
            mask = torch.ones(1, len(prompt), dtype=torch.long)
            self._generate(torch.tensor([prompt]), mask, tokens, assistant_model=self._draft)
        return len(prompts) * tokens / (time.perf_counter() - start)

    def _generate(self, ids: torch.Tensor, mask: torch.Tensor, tokens: int, **options: Any) -> None:
        with torch.inference_mode():
            output = self._target.generate(
                ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0, **options
            )
        assert output.shape[1] == ids.shape[1] + tokens, "generation ended early"


def _load(folder: Path, dtype: torch.dtype) -> Any:
    transformers: Any = import_module("transformers")  # its types do not stand strict checking
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None  # outputs of full length, as ignore_eos gives
    return model
