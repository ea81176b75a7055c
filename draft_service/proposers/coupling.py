"""Choosing a node's children from the draft's logits, with the request's own sampling rules and noise.

The target decides position i by argmax(processed target logits / T + g(seed, i)). The draft ranks tokens by the same
sum over its own logits, so both pick the same token wherever their distributions agree: coupling without
communication (arXiv 2408.07978). At T = 0 the noise drops out and this is plain top-k.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draft_service.proposers.base import Sampling
from draft_service.proposers.draft_rows import Branch
from slipstream_kernels.ops.candidates import top_candidates
from slipstream_kernels.ops.logits import SamplingRows
from slipstream_kernels.ops.philox import gumbel

_EXTRA = 3
"""Candidates beyond the children wanted that stand for the rest of the vocabulary in a coupled score."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """How one session chooses.

    line: its line of the counts, -1 without penalties. stops: the ids that min_tokens masks.
    """

    sampling: Sampling
    line: int
    prompt_length: int
    stops: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether the highest logit wins, unprocessed."""
        s = self.sampling
        return s.temperature == 0 and self.line < 0 and not s.logit_bias and not s.min_tokens


class Coupling:
    """The sampling rules of all sessions of one draft model."""

    def __init__(self, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._vocab_size = vocab_size
        self._allowed = vocab_size
        self._eos = tuple(eos_token_ids)
        self._rules: dict[int, _Rules] = {}
        self._clear_counts()

    def limit_vocabulary(self, size: int) -> None:
        """Never choose ids from `size` on: the target has no such tokens. Only while no session is open."""
        assert not self._rules
        self._allowed = min(size, self._vocab_size)
        self._clear_counts()

    def open(self, session: int, tokens: Sequence[int], prompt_length: int, sampling: Sampling) -> None:
        """Begin a session with `tokens`, the first `prompt_length` of which are the prompt."""
        line = -1
        if (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1.0, 0.0, 0.0):
            line = self._take_line()
            self._prompt_seen[line, self._known(tokens[:prompt_length])] = 1
            np.add.at(self._output_counts[line], self._known(tokens[prompt_length:]), 1)
        stops = sampling.stop_token_ids if sampling.ignore_eos else (*self._eos, *sampling.stop_token_ids)
        self._rules[session] = _Rules(sampling, line, prompt_length, stops)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        line = self._rules[session].line
        if line >= 0:
            np.add.at(self._output_counts[line], self._known(token_ids), 1)

    def close(self, session: int) -> None:
        rules = self._rules.pop(session, None)
        if rules is not None and rules.line >= 0:
            self._prompt_seen[rules.line] = 0
            self._output_counts[rules.line] = 0
            self._free_lines.append(rules.line)

    def extend(self, logits: npt.NDArray[np.float32], branches: Sequence[Branch], width: int) -> None:
        """Give every frontier node of every branch its children.

        logits: float32 [frontier nodes of all branches, vocab], in the branches' order. width: children a node.
        """
        logits = logits[:, : self._allowed]
        width = min(width, self._allowed)
        if all(self._rules[branch.session.number].plain for branch in branches):
            ids, log_probs = top_candidates(logits, width, None)
            scores = log_probs
        else:
            rows = self._sampling_rows(branches)
            many = width if width == 1 else min(width + _EXTRA, self._allowed)
            ids, log_probs = top_candidates(logits, many, rows)
            scores = log_probs if width == 1 else _coupled_scores(ids, log_probs, rows)
        id_lists, score_lists, log_lists = (array[:, :width].tolist() for array in (ids, scores, log_probs))
        if ids[:, :width].min() < 0:
            # Fewer tokens passed the filters than children are wanted; they come first.
            counts = (ids[:, :width] >= 0).sum(axis=1).tolist()
            id_lists, score_lists, log_lists = (
                [row[:count] for row, count in zip(rows_, counts, strict=True)]
                for rows_ in (id_lists, score_lists, log_lists)
            )
        begin = 0
        for branch in branches:
            end = begin + len(branch.expansion.frontier)
            branch.expansion.extend(id_lists[begin:end], score_lists[begin:end], log_lists[begin:end])
            begin = end

    def _sampling_rows(self, branches: Sequence[Branch]) -> SamplingRows:
        rules: list[_Rules] = []
        positions: list[int] = []
        paths: list[list[int]] = []
        masks: list[tuple[int, ...]] = []
        for branch in branches:
            rule, length = self._rules[branch.session.number], len(branch.session.tokens)
            for node in branch.expansion.frontier:
                path = [branch.expansion.token(ancestor) for ancestor in branch.expansion.path(node)]
                rules.append(rule)
                positions.append(length + len(path))
                paths.append(path if rule.line >= 0 else [])
                short = positions[-1] - rule.prompt_length < rule.sampling.min_tokens
                masks.append(tuple(stop for stop in rule.stops if stop < self._allowed) if short else ())
        samplings = [rule.sampling for rule in rules]
        biases = [{token: bias for token, bias in s.logit_bias.items() if token < self._allowed} for s in samplings]
        return SamplingRows(
            position=np.array(positions, np.int32),
            temperature=np.array([s.temperature for s in samplings], np.float32),
            top_k=np.array([s.top_k for s in samplings], np.int32),
            top_p=np.array([s.top_p for s in samplings], np.float32),
            min_p=np.array([s.min_p for s in samplings], np.float32),
            seed=np.array([s.seed for s in samplings], np.uint64),
            choice=np.array([s.choice for s in samplings], np.uint32),
            repetition=np.array([s.repetition_penalty for s in samplings], np.float32),
            presence=np.array([s.presence_penalty for s in samplings], np.float32),
            frequency=np.array([s.frequency_penalty for s in samplings], np.float32),
            history=np.array([rule.line for rule in rules], np.int32),
            prompt_seen=self._prompt_seen,
            output_counts=self._output_counts,
            path_offsets=_offsets(paths),
            path_tokens=np.array([token for path in paths for token in path], np.int32),
            bias_offsets=_offsets(biases),
            bias_ids=np.array([token for bias in biases for token in bias], np.int32),
            bias_values=np.array([value for bias in biases for value in bias.values()], np.float32),
            mask_offsets=_offsets(masks),
            mask_ids=np.array([token for mask in masks for token in mask], np.int32),
        )

    def _known(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in tokens if token < self._allowed]

    def _clear_counts(self) -> None:
        self._free_lines: list[int] = []
        self._prompt_seen: npt.NDArray[np.uint8] = np.zeros((0, self._allowed), np.uint8)
        self._output_counts: npt.NDArray[np.int32] = np.zeros((0, self._allowed), np.int32)

    def _take_line(self) -> int:
        if not self._free_lines:
            lines = len(self._prompt_seen)
            more = max(4, lines)
            self._prompt_seen = np.pad(self._prompt_seen, ((0, more), (0, 0)))
            self._output_counts = np.pad(self._output_counts, ((0, more), (0, 0)))
            self._free_lines = list(range(lines + more - 1, lines - 1, -1))
        return self._free_lines.pop()


def _coupled_scores(
    ids: npt.NDArray[np.int32], log_probs: npt.NDArray[np.float32], rows: SamplingRows
) -> npt.NDArray[np.float32]:
    """Logarithm of the estimated probability that each candidate is the target's choice, float32 [rows, candidates].

    The softmax of T (log-probability + g) over the candidates, the log-probability being that of logits / T: the
    draft's own distribution at T = 0, and at higher T one that knows the noise.
    """
    values = log_probs.copy()
    for row in range(len(ids)):
        temperature = rows.temperature[row]
        if temperature > 0:
            noise = gumbel(int(rows.seed[row]), int(rows.choice[row]), int(rows.position[row]), ids[row])
            perturbed = temperature * (values[row] + noise)
            values[row] = perturbed - np.logaddexp.reduce(perturbed)
    return values


def _offsets(lists: Sequence[Collection[object]]) -> npt.NDArray[np.int32]:
    return np.cumsum([0, *map(len, lists)], dtype=np.int32)
