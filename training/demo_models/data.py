"""Documents on the device, packed into rows that no document crosses."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.demo_models.prepare import ANSWER, KINDS, Documents


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokenised documents; tokens int16 and weights float16 lie on the device, flat [N].

    weights: of each token as a prediction's target; positive for likelihood, negative for unlikelihood.
    lengths int64 [D] on the host.
    """

    tokens: Tensor
    weights: Tensor
    lengths: npt.NDArray[np.int64]

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum(self.lengths) - self.lengths


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed rows: tokens int64, targets int64, weights float32, documents int32, all [B, T]."""

    tokens: Tensor
    targets: Tensor
    weights: Tensor
    documents: Tensor


def to_corpus(documents: Documents, prompt_weight: float, device: str) -> Corpus:
    """Answers and running text weigh 1, all other tokens `prompt_weight`."""
    types = torch.from_numpy(documents.types).to(device)
    weights = torch.where(types == ANSWER, 1.0, prompt_weight).to(torch.float16)
    tokens = torch.from_numpy(documents.tokens.view(np.int16)).to(device)
    return Corpus(tokens, weights, documents.lengths.astype(np.int64))


def draw_order(
    documents: Documents,
    passes: dict[str, float],
    sources: list[str],
    keep: npt.NDArray[np.bool_],
    tokens: int,
    generator: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Document numbers in random order, about `tokens` tokens in all, each source in proportion to its passes."""
    rate = np.array([passes.get(source, 1.0) for source in sources])[documents.sources] * keep
    scale = tokens / max(1.0, float((rate * documents.lengths).sum()))
    expected = rate * scale
    whole = np.floor(expected + generator.random(len(expected)))
    order = np.repeat(np.arange(len(whole)), whole.astype(np.int64))
    generator.shuffle(order)
    return order


def good_for_annealing(documents: Documents, longest_answer: int) -> npt.NDArray[np.bool_]:
    """Documents whose answers are short and, outside code, free of repeated 16-grams."""
    code = documents.kinds == KINDS.index("code")
    fits: npt.NDArray[np.bool_] = (documents.longest_answer <= longest_answer) & (~documents.loops | code)
    return fits


def place(lengths: npt.NDArray[np.int64], row_length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and offset of each document, in order: a document that does not fit opens the next row."""
    ends = np.cumsum(lengths)
    rows, offsets = np.zeros_like(lengths), np.zeros_like(lengths)
    first, row = 0, 0
    while first < len(lengths):
        base = ends[first] - lengths[first]
        last = max(first + 1, int(np.searchsorted(ends, base + row_length, side="right")))
        rows[first:last] = row
        offsets[first:last] = ends[first:last] - lengths[first:last] - base
        first, row = last, row + 1
    return rows, offsets


def pack(corpus: Corpus, order: npt.NDArray[np.int64], row_length: int, glue: float, seed: int) -> Batch:
    """Pack documents into rows of `row_length`, cut to it where longer.

    A document sees only itself, or with probability `glue` also what its predecessor in the row sees. The target
    of a document's last token weighs nothing, nor do the padding's.
    """
    device = corpus.tokens.device
    lengths = np.minimum(corpus.lengths[order], row_length)
    rows, offsets = place(lengths, row_length)
    height = int(rows[-1]) + 1
    generator = np.random.default_rng(seed)
    groups = np.cumsum(generator.random(len(order)) >= glue)
    counts = torch.from_numpy(lengths).to(device)
    within = torch.arange(int(lengths.sum()), device=device)
    within -= torch.repeat_interleave(torch.from_numpy(np.cumsum(lengths) - lengths).to(device), counts)
    source = within + torch.repeat_interleave(torch.from_numpy(corpus.starts[order]).to(device), counts)
    target = within + torch.repeat_interleave(torch.from_numpy(rows * row_length + offsets).to(device), counts)

    def scatter(values: Tensor, fill: int, dtype: torch.dtype) -> Tensor:
        flat = torch.full((height * row_length,), fill, dtype=dtype, device=device)
        flat[target] = values.to(dtype)
        return flat.view(height, row_length)

    tokens = scatter(corpus.tokens[source], 0, torch.int16)
    documents = scatter(torch.repeat_interleave(torch.from_numpy(groups).to(device), counts), 2**30, torch.int32)
    weighted = torch.where(within == 0, 0.0, corpus.weights[source].float())
    weights = scatter(weighted, 0, torch.float16)
    return Batch(tokens, _next(tokens), _next(weights), documents)


def _next(values: Tensor) -> Tensor:
    """Each row moved left by one, zero at its end."""
    return torch.cat((values[:, 1:], torch.zeros_like(values[:, :1])), dim=1)


def batches(
    corpus: Corpus,
    order: npt.NDArray[np.int64],
    rows: int,
    row_length: int,
    glue: float,
    seed: int,
    keep_last: bool = False,
) -> Iterator[Batch]:
    """Batches of packed rows, the incomplete last one if asked for; packs 100,000 documents at a time."""
    held: Batch | None = None
    for number, start in enumerate(range(0, len(order), 100_000)):
        packed = pack(corpus, order[start : start + 100_000], row_length, glue, seed + number)
        held = packed if held is None else _join(held, packed)
        full = held.tokens.shape[0] // rows * rows
        for first in range(0, full, rows):
            yield _widen(_slice(held, first, first + rows))
        held = _slice(held, full, held.tokens.shape[0])
    if keep_last and held is not None and held.tokens.shape[0]:
        yield _widen(held)


def _slice(batch: Batch, first: int, last: int) -> Batch:
    span = slice(first, last)
    return Batch(batch.tokens[span], batch.targets[span], batch.weights[span], batch.documents[span])


def _join(a: Batch, b: Batch) -> Batch:
    return Batch(
        torch.cat((a.tokens, b.tokens)),
        torch.cat((a.targets, b.targets)),
        torch.cat((a.weights, b.weights)),
        torch.cat((a.documents, b.documents)),
    )


def _widen(batch: Batch) -> Batch:
    return Batch(batch.tokens.long(), batch.targets.long(), batch.weights.float(), batch.documents)
