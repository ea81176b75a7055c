"""Plain decoding, one token a pass, with sampling written out in numpy: what the verify loop must reproduce."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slipstream.generation_types import FinishReason
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.ops.philox import gumbel
from verify_service.core.request import SamplingParams

PAGE = 8


class PlainDecoder:
    """Logits of a growing sequence of tokens, one row at a time."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        pages = -(-model.config.max_context // PAGE)
        self._cache = model.new_cache(num_pages=pages, page_size=PAGE, scratch_slots=1)
        self._pages = list(range(pages))[::-1]
        self._tokens: list[int] = []

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """Logits after `tokens`; computes what differs from the call before."""
        common = 0
        for mine, theirs in zip(self._tokens, tokens[:-1], strict=False):
            if mine != theirs:
                break
            common += 1
        for position in range(common, len(tokens)):
            row = self._model.forward(self._cache, RowBatch.chunk([tokens[position]], position, self._pages, PAGE))
        self._tokens = list(tokens)
        return np.array(row[0])


def processed(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    eos: tuple[int, ...],
    legal: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Bias, penalties, what a grammar leaves and forbidden tokens; these do not count where nothing else is left."""
    x = logits.astype(np.float32).copy()
    for token, bias in params.logit_bias:
        x[token] += np.float32(bias)
    counts = np.bincount(output, minlength=len(x)) if output else np.zeros(len(x), dtype=np.int64)
    seen = counts > 0
    seen[prompt] = True
    penalty = np.float32(params.repetition_penalty)
    x = np.where(seen, np.where(x > 0, x / penalty, x * penalty), x).astype(np.float32)
    x = x - np.float32(params.presence_penalty) * (counts > 0).astype(np.float32)
    x = x - np.float32(params.frequency_penalty) * counts.astype(np.float32)
    if legal is not None:
        x[~legal] = -np.inf
    if len(output) < params.min_tokens:
        left = x.copy()
        left[list(eos) + list(params.stop_token_ids)] = -np.inf
        if np.isfinite(left).any():
            return left.astype(np.float32)
        x = np.where(np.isfinite(x), np.float32(0), x)  # the lowest id of what is left
    return x.astype(np.float32)


def kept_ids(x: NDArray[np.float32], params: SamplingParams) -> NDArray[np.int64]:
    """Candidates after top-k, top-p and min-p, by falling probability and rising id; x is divided by T."""
    order = np.lexsort((np.arange(len(x)), -x))
    order = order[np.isfinite(x[order])]
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        mass = np.exp(x[order].astype(np.float64) - x[order[0]])
        reached = np.cumsum(mass / mass.sum()) >= np.float32(params.top_p)
        order = order[: int(np.argmax(reached)) + 1] if reached.any() else order
    if params.min_p > 0:
        mass = np.exp(x[order].astype(np.float64) - x[order[0]])
        order = order[mass >= np.float32(params.min_p)]
    return order


def choose(x: NDArray[np.float32], params: SamplingParams, choice: int, position: int) -> int:
    """The token of processed logits at an absolute position."""
    if params.temperature == 0:
        return int(np.argmax(x))
    assert params.seed is not None
    x = x / np.float32(params.temperature)
    ids = np.sort(kept_ids(x, params))
    noise = gumbel(params.seed, choice, position, ids.astype(np.int32))
    return int(ids[np.argmax(x[ids] + noise)])


def plain_generate(
    model: CausalLM,
    prompt: list[int],
    params: SamplingParams,
    *,
    choice: int = 0,
    legal: Callable[[list[int]], NDArray[np.bool_] | None] = lambda output: None,
) -> tuple[list[int], list[NDArray[np.float32]], FinishReason]:
    """Output tokens, the raw logits that decided each, and why the output ended. `legal` masks what may follow."""
    decoder = PlainDecoder(model)
    eos = tuple(model.config.eos_token_ids)
    stops = set(params.stop_token_ids) | (set(eos) if params.grammar or not params.ignore_eos else set())
    output: list[int] = []
    rows: list[NDArray[np.float32]] = []
    limit = model.config.max_context - len(prompt) if params.max_tokens is None else params.max_tokens
    while len(output) < limit:
        raw = decoder.logits(prompt + output)
        x = processed(raw, params, prompt, output, eos, legal(output))
        rows.append(raw)
        output.append(choose(x, params, choice, len(prompt) + len(output)))
        if output[-1] in stops:
            return output, rows, FinishReason.STOP
    return output, rows, FinishReason.LENGTH
