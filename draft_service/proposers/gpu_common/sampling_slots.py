"""Which line of a device's tables a session has, and its sampling rules there, by places of a draft's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from draft_service.proposers.base import Sampling
from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.ops.gpu.sampling_table import pack_line


class SamplingSlots:
    """Places of the target's ids in a draft's vocabulary."""

    def __init__(self, ids: torch.Tensor | None, entries: int) -> None:
        """ids: the target's id of each of `entries` places; None where both are the same."""
        known = np.arange(entries) if ids is None else ids.cpu().numpy()
        self._place: npt.NDArray[np.int32] = np.full(int(known.max()) + 1, -1, np.int32)
        self._place[known] = np.arange(entries, dtype=np.int32)

    def of(self, tokens: Sequence[int]) -> npt.NDArray[np.int32]:
        """Places of those of the tokens that have one, in order."""
        ids = np.asarray(tokens, np.int64)
        places = self._place[ids[ids < len(self._place)]]
        return places[places >= 0]

    def values(self, pairs: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """(place, value) of (token, value) pairs, without tokens that have no place."""
        return [(int(place), value) for token, value in pairs for place in self.of([token])]


def is_filtered(sampling: Sampling) -> bool:
    """Whether a request samples from a part of the vocabulary."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


def is_penalised(sampling: Sampling) -> bool:
    """Whether a request's choice depends on the tokens before."""
    return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1.0, 0.0, 0.0)


def set_rules(
    tables: RequestTables,
    line: int,
    places: SamplingSlots,
    sampling: Sampling,
    tokens: Sequence[int],
    prompt_length: int,
    eos: Sequence[int],
) -> None:
    """Write a session's rules to its line, the first `prompt_length` of its tokens being the prompt."""
    bias = places.values(tuple(sampling.logit_bias.items()))
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
        prompt_ids=places.of(tokens[:prompt_length]).tolist() if penalised else None,
        output_ids=places.of(tokens[prompt_length:]).tolist() if penalised else None,
        bias=bias or None,
        end_ids=places.of((*eos, *sampling.stop_token_ids)).tolist() if sampling.min_tokens else None,
    )


def count_output(tables: RequestTables, line: int, places: SamplingSlots, tokens: Sequence[int]) -> None:
    """Note that the output of a line with penalties goes on with `tokens`."""
    counts = tables.sampling.output_counts[line]
    found = torch.from_numpy(places.of(tokens).astype(np.int64)).to(counts.device)
    counts.index_add_(0, found, torch.ones_like(found, dtype=counts.dtype))
