"""Sampling parameters of running requests as columns, gathered into rows for the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.ops.sampling import SamplingRows
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest

IntArray = NDArray[np.int32]


class SamplingTable:
    """One row a running request: `state.kv.req_index`.

    Penalties need what a request has seen: `prompt_seen` uint8 and `output_counts` int32, both [max_running, vocab].
    """

    def __init__(self, max_running: int, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._eos_token_ids = eos_token_ids
        self._temperature = np.zeros(max_running, dtype=np.float32)
        self._top_k = np.zeros(max_running, dtype=np.int32)
        self._top_p = np.ones(max_running, dtype=np.float32)
        self._min_p = np.zeros(max_running, dtype=np.float32)
        self._seed = np.zeros(max_running, dtype=np.uint64)
        self._choice = np.zeros(max_running, dtype=np.uint32)
        self._repetition = np.ones(max_running, dtype=np.float32)
        self._presence = np.zeros(max_running, dtype=np.float32)
        self._frequency = np.zeros(max_running, dtype=np.float32)
        self._history = np.full(max_running, -1, dtype=np.int32)
        self._prompt_seen = np.zeros((max_running, vocab_size), dtype=np.uint8)
        self._output_counts = np.zeros((max_running, vocab_size), dtype=np.int32)
        self._bias: list[tuple[IntArray, NDArray[np.float32]] | None] = [None] * max_running
        self._masked: list[IntArray | None] = [None] * max_running
        self._edited: set[int] = set()
        self._no_offsets = np.zeros(0, dtype=np.int32)
        self._no_ids = np.zeros(0, dtype=np.int32)
        self._no_values = np.zeros(0, dtype=np.float32)

    def begin(self, state: RequestState) -> None:
        """Fill the line of a request that starts, or starts again."""
        line, params = state.kv.req_index, state.parameters.sampling
        self._temperature[line] = params.temperature
        self._top_k[line] = params.top_k
        self._top_p[line] = params.top_p
        self._min_p[line] = params.min_p
        self._seed[line] = state.parameters.seed
        self._choice[line] = state.request.choice_index
        self._repetition[line] = params.repetition_penalty
        self._presence[line] = params.presence_penalty
        self._frequency[line] = params.frequency_penalty
        self._begin_history(state)
        self._begin_edits(state)
        edited = self._history[line] >= 0 or self._bias[line] is not None or self._masked[line] is not None
        (self._edited.add if edited else self._edited.discard)(line)

    def commit(self, state: RequestState, tokens: Sequence[int]) -> None:
        """Count tokens that were added to the output."""
        line = state.kv.req_index
        if self._history[line] >= 0:
            np.add.at(self._output_counts[line], np.asarray(tokens, dtype=np.int64), 1)

    def gather(self, deciding: Sequence[ScheduledRequest], lines: IntArray, positions: IntArray) -> SamplingRows:
        """Rows for the kernels: of each item its root, then its tree's nodes.

        `lines` int32 [n] names each row's line, `positions` int32 [n] the position of the token it decides.
        """
        if len(self._no_offsets) <= len(lines):
            self._no_offsets = np.zeros(2 * len(lines) + 1, dtype=np.int32)
        offsets = path_offsets = bias_offsets = mask_offsets = self._no_offsets[: len(lines) + 1]
        path_tokens = bias_ids = mask_ids = self._no_ids
        bias_values = self._no_values
        if any(item.state.kv.req_index in self._edited for item in deciding):
            path_offsets, path_tokens = self._paths(deciding, offsets.copy())
            bias_offsets, bias_ids, bias_values = self._biases(deciding, offsets.copy())
            mask_offsets, mask_ids = self._masks(deciding, offsets.copy())
        return SamplingRows(
            position=positions,
            temperature=self._temperature[lines],
            top_k=self._top_k[lines],
            top_p=self._top_p[lines],
            min_p=self._min_p[lines],
            seed=self._seed[lines],
            choice=self._choice[lines],
            repetition=self._repetition[lines],
            presence=self._presence[lines],
            frequency=self._frequency[lines],
            history=self._history[lines],
            prompt_seen=self._prompt_seen,
            output_counts=self._output_counts,
            path_offsets=path_offsets,
            path_tokens=path_tokens,
            bias_offsets=bias_offsets,
            bias_ids=bias_ids,
            bias_values=bias_values,
            mask_offsets=mask_offsets,
            mask_ids=mask_ids,
        )

    def _begin_history(self, state: RequestState) -> None:
        line, params = state.kv.req_index, state.parameters.sampling
        if params.repetition_penalty == 1 and params.presence_penalty == 0 and params.frequency_penalty == 0:
            self._history[line] = -1
            return
        self._history[line] = line
        self._prompt_seen[line] = 0
        self._prompt_seen[line, state.tokens[: state.prompt_length]] = 1
        self._output_counts[line] = 0
        self.commit(state, state.tokens[state.prompt_length :])

    def _begin_edits(self, state: RequestState) -> None:
        params = state.parameters.sampling
        self._bias[state.kv.req_index] = self._masked[state.kv.req_index] = None
        if params.logit_bias:
            ids = np.array([token for token, _ in params.logit_bias], dtype=np.int32)
            self._bias[state.kv.req_index] = ids, np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        if params.min_tokens:
            self._masked[state.kv.req_index] = np.array(
                sorted({*params.stop_token_ids, *self._eos_token_ids}), dtype=np.int32
            )

    def _paths(self, deciding: Sequence[ScheduledRequest], offsets: IntArray) -> tuple[IntArray, IntArray]:
        """Drafted tokens above and at each row that no output count holds yet."""
        tokens: list[int] = []
        row = 0
        for item in deciding:
            row += 1
            if item.tree is None:
                continue
            if self._history[item.state.kv.req_index] < 0:
                row += len(item.tree)
                continue
            for node in range(len(item.tree)):
                path = [item.tree.token_ids[above] for above in item.tree.path(node)]
                tokens.extend(path)
                offsets[row + 1] = len(path)
                row += 1
        if not tokens:
            return offsets, self._no_ids
        return np.cumsum(offsets, dtype=np.int32), np.array(tokens, dtype=np.int32)

    def _biases(
        self, deciding: Sequence[ScheduledRequest], offsets: IntArray
    ) -> tuple[IntArray, IntArray, NDArray[np.float32]]:
        ids: list[IntArray] = []
        values: list[NDArray[np.float32]] = []
        row = 0
        for item in deciding:
            bias = self._bias[item.state.kv.req_index]
            count = item.num_rows
            if bias is not None:
                offsets[row + 1 : row + 1 + count] = len(bias[0])
                ids.extend([bias[0]] * count)
                values.extend([bias[1]] * count)
            row += count
        if not ids:
            return offsets, self._no_ids, self._no_values
        return np.cumsum(offsets, dtype=np.int32), np.concatenate(ids), np.concatenate(values)

    def _masks(self, deciding: Sequence[ScheduledRequest], offsets: IntArray) -> tuple[IntArray, IntArray]:
        """Ids that would end an output shorter than min_tokens."""
        ids: list[IntArray] = []
        row = 0
        for item in deciding:
            masked = self._masked[item.state.kv.req_index]
            if masked is not None:
                state = item.state
                due = state.parameters.sampling.min_tokens - (len(state.tokens) - state.prompt_length)
                depths = (0, *item.tree.depths) if item.tree is not None else (0,)
                for index, depth in enumerate(depths):
                    if depth < due:
                        offsets[row + 1 + index] = len(masked)
                        ids.append(masked)
            row += item.num_rows
        if not ids:
            return offsets, self._no_ids
        return np.cumsum(offsets, dtype=np.int32), np.concatenate(ids)
