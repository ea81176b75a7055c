"""Sampling rules of sessions in a device's tables, by ids of the draft vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from draft_service.proposers.base import Sampling
from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.ops.gpu.sampling_table import pack_line


class DraftVocabulary:
    """Maps the target's ids to a draft's vocabulary (EAGLE-3: t2d)."""

    def __init__(self, ids: torch.Tensor | None, entries: int) -> None:
        """ids: the target's id of each of `entries` draft ids (d2t); None where both vocabularies are the same."""
        known = np.arange(entries) if ids is None else ids.cpu().numpy()
        self._target_to_draft: npt.NDArray[np.int32] = np.full(int(known.max()) + 1, -1, np.int32)
        self._target_to_draft[known] = np.arange(entries, dtype=np.int32)

    def draft_ids(self, tokens: Sequence[int]) -> npt.NDArray[np.int32]:
        """Return the draft ids of the tokens that have one, in order."""
        ids = np.asarray(tokens, np.int64)
        found = self._target_to_draft[ids[ids < len(self._target_to_draft)]]
        return found[found >= 0]

    def draft_pairs(self, pairs: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """Return (draft id, value) of (token, value) pairs, without tokens that have no draft id."""
        return [(int(draft_id), value) for token, value in pairs for draft_id in self.draft_ids([token])]


def is_filtered(sampling: Sampling) -> bool:
    """Return whether a request samples from a part of the vocabulary (top-k, top-p, min-p)."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


def is_penalised(sampling: Sampling) -> bool:
    """Return whether penalties make a request's token depend on the tokens before."""
    return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1.0, 0.0, 0.0)


def set_rules(
    tables: RequestTables,
    line: int,
    vocabulary: DraftVocabulary,
    sampling: Sampling,
    tokens: Sequence[int],
    prompt_length: int,
    eos: Sequence[int],
) -> None:
    """Write a session's sampling rules to its line; the first `prompt_length` tokens are the prompt."""
    bias = vocabulary.draft_pairs(tuple(sampling.logit_bias.items()))
    penalised = is_penalised(sampling)
    params = pack_line(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        choice=sampling.choice,
        repetition=sampling.repetition_penalty,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        has_bias=bool(bias),
        min_position=prompt_length + sampling.min_tokens if sampling.min_tokens else 0,
    )
    tables.set_line(
        line,
        params,
        prompt_ids=vocabulary.draft_ids(tokens[:prompt_length]).tolist() if penalised else None,
        output_ids=vocabulary.draft_ids(tokens[prompt_length:]).tolist() if penalised else None,
        bias=bias or None,
        end_ids=vocabulary.draft_ids((*eos, *sampling.stop_token_ids)).tolist() if sampling.min_tokens else None,
    )


def count_output(tables: RequestTables, line: int, vocabulary: DraftVocabulary, tokens: Sequence[int]) -> None:
    """Count new output tokens of a line with penalties."""
    counts = tables.sampling.output_counts[line]
    found = torch.from_numpy(vocabulary.draft_ids(tokens).astype(np.int64)).to(counts.device)
    counts.index_add_(0, found, torch.ones_like(found, dtype=counts.dtype))
