"""Prompts cut from the corpus, and the target's own answers as training documents."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from training.demo_models.data import Corpus, draw_order
from training.demo_models.prepare import ANSWER, KINDS, Documents


def answer_starts(documents: Documents) -> npt.NDArray[np.int64]:
    """Positions in `documents.tokens` where an answer's first token stands."""
    answers = documents.types == ANSWER
    begins = answers.copy()
    begins[1:] &= ~answers[:-1]
    return np.flatnonzero(begins)


def draw_prompts(
    documents: Documents, passes: dict[str, float], sources: list[str], count: int, longest: int, seed: int
) -> list[npt.NDArray[np.uint16]]:
    """Conversations cut before one of their answers, drawn by source, no longer than `longest` tokens."""
    generator = np.random.default_rng(seed)
    keep = documents.kinds != KINDS.index("text")
    ends = np.cumsum(documents.lengths.astype(np.int64))
    begins = answer_starts(documents)
    first = np.searchsorted(begins, ends - documents.lengths)
    available = np.searchsorted(begins, ends) - first
    order = draw_order(documents, passes, sources, keep & (available > 0), int(documents.lengths.sum()), generator)
    while 0 < len(order) < 2 * count:
        order = np.concatenate((order, order))
    prompts: list[npt.NDArray[np.uint16]] = []
    for document in order.tolist():
        cut = begins[first[document] + generator.integers(available[document])]
        start = ends[document] - documents.lengths[document]
        if cut - start <= longest:
            prompts.append(documents.tokens[start:cut])
        if len(prompts) == count:
            break
    return prompts


def repeated_positions(tokens: Sequence[int], size: int = 8) -> list[bool]:
    """For each token, whether the run of `size` tokens that it ends has occurred before."""
    seen: set[tuple[int, ...]] = set()
    found = [False] * len(tokens)
    for end in range(size, len(tokens) + 1):
        gram = tuple(tokens[end - size : end])
        found[end - 1] = gram in seen
        seen.add(gram)
    return found


def answer_corpus(
    prompts: Sequence[npt.NDArray[np.uint16]],
    answers: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]],
    device: str,
    prompt_weight: float = 0.0,
) -> Corpus:
    """Documents of prompt and answer; `weights` are those of the answers' tokens."""
    tokens = [part for p, a in zip(prompts, answers, strict=True) for part in (p, np.array(a, dtype=np.uint16))]
    weighted = [
        part
        for prompt, values in zip(prompts, weights, strict=True)
        for part in (np.full(len(prompt), prompt_weight, np.float16), np.array(values, dtype=np.float16))
    ]
    lengths = np.array([len(p) + len(a) for p, a in zip(prompts, answers, strict=True)], dtype=np.int64)
    flat = torch.from_numpy(np.concatenate(tokens).view(np.int16)).to(device)
    return Corpus(flat, torch.from_numpy(np.concatenate(weighted)).to(device), lengths)
