"""Choosing a node's children from the draft's logits, with the request's own sampling rules and noise.

The target decides position i by argmax(processed target logits / T + g(seed, i)). The draft ranks tokens by the same
sum over its own logits, so both pick the same token wherever their distributions agree: coupling without
communication (arXiv 2408.07978). At T = 0 the noise drops out and this is plain top-k.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from draft_service.proposers.base import Sampling
from draft_service.proposers.cpu_common.rows import Branch
from slipstream_kernels.ops.candidates import top_candidates
from slipstream_kernels.ops.logits import SamplingRows
from slipstream_kernels.ops.philox import gumbel

T = TypeVar("T", bound=np.generic)

_EXTRA = 3
"""Candidates beyond the children wanted that stand for the rest of the vocabulary in a coupled score."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """How one session chooses.

    line: its line of the counts, -1 without penalties. stops: the ids that min_tokens masks. reals: temperature,
    top_p, min_p and the three penalties. whole: top_k and line.
    """

    sampling: Sampling
    prompt_length: int
    stops: tuple[int, ...]
    bias_ids: tuple[int, ...]
    bias_values: tuple[float, ...]
    reals: tuple[float, ...]
    whole: tuple[int, int]

    @classmethod
    def of(cls, sampling: Sampling, prompt_length: int, line: int, eos: tuple[int, ...], allowed: int) -> _Rules:
        """Rules over the ids below `allowed`."""
        s = sampling
        stops = (*eos, *s.stop_token_ids)
        bias = {token: value for token, value in s.logit_bias.items() if token < allowed}
        return cls(
            sampling=sampling,
            prompt_length=prompt_length,
            stops=tuple(stop for stop in stops if stop < allowed),
            bias_ids=tuple(bias),
            bias_values=tuple(bias.values()),
            reals=(s.temperature, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty, s.frequency_penalty),
            whole=(s.top_k, line),
        )

    @property
    def line(self) -> int:
        return self.whole[1]

    @property
    def plain(self) -> bool:
        """Whether the highest logit wins, unprocessed."""
        s = self.sampling
        return s.temperature == 0 and self.line < 0 and not self.bias_ids and not s.min_tokens


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
        self._rules[session] = _Rules.of(sampling, prompt_length, line, self._eos, self._allowed)

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
        self._extend(logits, branches, [branch.expansion.frontier for branch in branches], width)

    def extend_alike(self, logits: npt.NDArray[np.float32], branches: Sequence[Branch], width: int) -> None:
        """As `extend` for a draft that does not see its own tokens: float32 [branches, vocab], one row for a frontier.

        The nodes of a frontier are at one position, so nothing but penalties tells them apart.
        """
        nodes = [
            branch.expansion.frontier[: None if self._rules[branch.session.number].line >= 0 else 1]
            for branch in branches
        ]
        self._extend(np.repeat(logits, [len(each) for each in nodes], axis=0), branches, nodes, width)

    def _extend(
        self, logits: npt.NDArray[np.float32], branches: Sequence[Branch], nodes: Sequence[Sequence[int]], width: int
    ) -> None:
        """`extend` with rows for `nodes` alone, of each frontier all or the one that stands for all."""
        logits = logits[:, : self._allowed]
        width = min(width, self._allowed)
        if all(self._rules[branch.session.number].plain for branch in branches):
            ids, log_probs = top_candidates(logits, width, None)
            scores = log_probs
        else:
            rows = self._sampling_rows(branches, nodes)
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
        for branch, each in zip(branches, nodes, strict=True):
            end, copies = begin + len(each), len(branch.expansion.frontier) // len(each)
            branch.expansion.extend(
                id_lists[begin:end] * copies, score_lists[begin:end] * copies, log_lists[begin:end] * copies
            )
            begin = end

    def _sampling_rows(self, branches: Sequence[Branch], nodes: Sequence[Sequence[int]]) -> SamplingRows:
        rules: list[_Rules] = []
        positions: list[int] = []
        paths: list[Sequence[int]] = []
        masks: list[tuple[int, ...]] = []
        for branch, each in zip(branches, nodes, strict=True):
            rule, length = self._rules[branch.session.number], len(branch.session.tokens)
            for node in each:
                path = branch.expansion.path(node)
                rules.append(rule)
                positions.append(length + len(path))
                paths.append([branch.expansion.token(ancestor) for ancestor in path] if rule.line >= 0 else ())
                short = positions[-1] - rule.prompt_length < rule.sampling.min_tokens
                masks.append(rule.stops if short else ())
        reals = np.array([rule.reals for rule in rules], np.float32).T.copy()
        whole = np.array([rule.whole for rule in rules], np.int32).T.copy()
        path_offsets, path_tokens = _ragged(paths, np.int32)
        bias_offsets, bias_ids = _ragged([rule.bias_ids for rule in rules], np.int32)
        _, bias_values = _ragged([rule.bias_values for rule in rules], np.float32)
        mask_offsets, mask_ids = _ragged(masks, np.int32)
        return SamplingRows(
            position=np.array(positions, np.int32),
            temperature=reals[0],
            top_k=whole[0],
            top_p=reals[1],
            min_p=reals[2],
            seed=np.array([rule.sampling.seed for rule in rules], np.uint64),
            choice=np.array([rule.sampling.choice for rule in rules], np.uint32),
            repetition=reals[3],
            presence=reals[4],
            frequency=reals[5],
            history=whole[1],
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
        if temperature > 0 and ids[row, 0] >= 0:
            noise = gumbel(int(rows.seed[row]), int(rows.choice[row]), int(rows.position[row]), ids[row])
            perturbed = temperature * (values[row] + noise)
            values[row] = perturbed - np.logaddexp.reduce(perturbed)
    return values


def _ragged(lists: Sequence[Sequence[float]], dtype: type[T]) -> tuple[npt.NDArray[np.int32], npt.NDArray[T]]:
    """Lists end to end, and where each begins and ends: offsets int32 [n + 1]."""
    if not any(lists):
        return np.zeros(len(lists) + 1, np.int32), np.empty(0, dtype)
    offsets = np.array([0, *accumulate(map(len, lists))], np.int32)
    return offsets, np.array([value for values in lists for value in values], dtype)
