"""Batched sampling of answers with a KV cache: many thousand prompts in a few passes."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from training.common.model import CausalLM

PASS_TOKENS: Final = 131_072
"""Tokens of prompts that pass the model at once, 2 GiB of the demo mixture's widest activation in bfloat16."""

Prompt = Sequence[int] | npt.NDArray[np.uint16]


class Cache:
    """Keys and values of a group of right-padded prompts and what follows them.

    Row i holds its prompt at slots 0..lengths[i]-1; the answer's step s lies at slot width + s for all rows. Slots
    from lengths[i] to width - 1 are never seen.
    """

    def __init__(self, model: CausalLM, lengths: Tensor, width: int, new_tokens: int) -> None:
        shape = model.shape
        size = (shape.layers, 2, len(lengths), shape.kv_heads, width + new_tokens, shape.head_dim)
        self.values = torch.zeros(size, dtype=model.dtype, device=lengths.device)
        self.lengths = lengths
        self.width = width
        slots = torch.arange(width + new_tokens, device=lengths.device)
        hidden = (slots >= lengths[:, None]) & (slots < width)
        self.bias = torch.zeros(hidden.shape, device=lengths.device).masked_fill_(hidden, float("-inf"))

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        self.values = self.values[:, :, rows]
        self.lengths = self.lengths[rows]
        self.bias = self.bias[rows]


def prefill(model: CausalLM, prompts: Tensor, cache: Cache) -> Tensor:
    """Fill the cache from prompts int64 [B, width]; logits float32 [B, vocab] after each prompt's last token.

    PASS_TOKENS tokens, or one prompt, pass the model at once: the group's size does not bound what a pass holds.
    """
    rows = max(1, PASS_TOKENS // cache.width)
    longest = cache.lengths.tolist()
    last = []
    for first in range(0, len(prompts), rows):
        width = max(longest[first : first + rows])
        last.append(_prefill_rows(model, prompts[first : first + rows, :width], cache, first))
    return model.float_logits(model.model.norm(torch.cat(last)))


def _prefill_rows(model: CausalLM, prompts: Tensor, cache: Cache, first: int) -> Tensor:
    """The stream [b, hidden] at the last token of prompts [b, width], the cache's rows from `first` on."""
    count, width = prompts.shape
    cos, sin = model.cos[:width], model.sin[:width]
    x = model.embed(prompts)
    for index, layer in enumerate(model.layers):
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
        cache.values[index, 0, first : first + count, :, :width] = k
        cache.values[index, 1, first : first + count, :, :width] = v
        x = layer.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    return x[torch.arange(count, device=x.device), cache.lengths[first : first + count] - 1]


def decode(model: CausalLM, tokens: Tensor, step: int, cache: Cache) -> Tensor:
    """Append tokens int64 [B] at answer step `step`; logits float32 [B, vocab] after them."""
    shape = model.shape
    slot = cache.width + step
    positions = cache.lengths + step
    cos, sin = model.cos[positions][:, None, None], model.sin[positions][:, None, None]
    bias = cache.bias[:, None, None, : slot + 1]
    x = model.embed(tokens[:, None])
    for index, layer in enumerate(model.layers):
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
        cache.values[index, 0, :, :, slot] = k[:, :, 0]
        cache.values[index, 1, :, :, slot] = v[:, :, 0]
        keys, values = cache.values[index, :, :, :, : slot + 1]
        grouped = q.view(len(q), shape.kv_heads, -1, shape.head_dim)
        scores = (grouped @ keys.mT).float() * shape.head_dim**-0.5 + bias
        attended = scores.softmax(dim=-1).to(values.dtype) @ values
        x = layer.finish(x, attended.reshape(q.shape))
    return model.float_logits(model.model.norm(x[:, 0]))


def choose(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Argmax where the temperature is 0, else a sample by Gumbel noise. Shapes [B, vocab], [B] -> [B]."""
    noise = -torch.empty_like(logits).exponential_(generator=generator).log()
    hot = temperatures[:, None] > 0
    scores = torch.where(hot, logits / temperatures[:, None].clamp(min=1e-3) + noise, logits)
    return scores.argmax(dim=-1)


def groups(lengths: Sequence[int], new_tokens: int, slots: int) -> Iterator[list[int]]:
    """Indices in groups of similar length whose caches stay under `slots` positions."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    while order:
        count = 1
        while count < len(order) and count < 8192 and (count + 1) * (lengths[order[count]] + new_tokens) <= slots:
            count += 1
        yield order[:count]
        order = order[count:]


def answer_group(
    model: CausalLM,
    prompts: Tensor,
    cache: Cache,
    temperatures: Tensor,
    hot_tokens: Tensor,
    new_tokens: int,
    stops: Tensor,
    generator: torch.Generator,
) -> Iterator[tuple[int, list[int]]]:
    """Row and sampled ids of each prompt of a group; ids after a stop mean nothing.

    Rows that have stopped are dropped whenever they are the half of those left.
    """
    rows = torch.arange(len(prompts), device=prompts.device)
    token = choose(prefill(model, prompts, cache), temperatures, generator)
    columns, done = token[:, None], torch.isin(token, stops)
    for step in range(new_tokens - 1):
        if step % 8 == 7 and int(done.sum()) * 2 >= len(done):
            yield from zip(rows[done].tolist(), columns[done].tolist(), strict=True)
            left = (~done).nonzero()[:, 0]
            rows, token, columns, done = rows[left], token[left], columns[left], done[left]
            temperatures, hot_tokens = temperatures[left], hot_tokens[left]
            cache.keep(left)
            if not len(left):
                return
        warmth = torch.where(hot_tokens > step + 1, temperatures, 0)
        token = choose(decode(model, token, step, cache), warmth, generator)
        columns = torch.cat((columns, token[:, None]), dim=1)
        done = done | torch.isin(token, stops)
    yield from zip(rows.tolist(), columns.tolist(), strict=True)


@torch.inference_mode()
def generate(
    model: CausalLM,
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    new_tokens: int,
    stops: Sequence[int],
    seed: int,
    slots: int = 5_000_000,
    hot_tokens: Sequence[int] | None = None,
) -> list[list[int]]:
    """Answers of at most `new_tokens` ids, the stop id included where one was reached, in the prompts' order.

    An answer's tokens from its `hot_tokens`-th on are greedy; without that, its temperature holds throughout.
    """
    device = model.cos.device
    generator = torch.Generator(device).manual_seed(seed)
    stop_ids = torch.tensor(stops, device=device)
    answers: list[list[int]] = [[] for _ in prompts]
    for group in groups([len(prompt) for prompt in prompts], new_tokens, slots):
        width = max(len(prompts[index]) for index in group)
        padded = torch.zeros(len(group), width, dtype=torch.int64)
        for row, index in enumerate(group):
            padded[row, : len(prompts[index])] = torch.from_numpy(np.asarray(prompts[index], dtype=np.int64))
        lengths = torch.tensor([len(prompts[index]) for index in group], device=device)
        warmth = torch.tensor([temperatures[index] for index in group], device=device)
        hot = torch.tensor([hot_tokens[index] if hot_tokens else new_tokens for index in group], device=device)
        cache = Cache(model, lengths, width, new_tokens)
        for row, ids in answer_group(model, padded.to(device), cache, warmth, hot, new_tokens, stop_ids, generator):
            answers[group[row]] = cut(ids, stops)
    return answers


def cut(tokens: list[int], stops: Sequence[int]) -> list[int]:
    """Everything up to the first stop id, which is kept."""
    for index, token in enumerate(tokens):
        if token in stops:
            return tokens[: index + 1]
    return tokens
