"""A proposer that costs what a draft model of given bytes and depth costs, and is right as often as it is told to be.

For every tree it reads so many bytes of its device's memory, pass after pass, and then answers with the target's own
continuation, recorded beforehand, to a given level; below that, and beside it, stand wrong tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.boundary.plan import DraftPlan, DraftReport
from benchmarks.boundary.reader import DeviceReader
from benchmarks.lib.continuations import continuation_key, read_continuations
from draft_service.proposers.base import CPU, DraftRequest, Opening, Proposer, ProposerOptions, Target
from slipstream_kernels.token_tree import TokenTree

if TYPE_CHECKING:
    import torch

KEPT = 1 << 16
"""Calls whose times are kept."""
_LIKELY, _UNLIKELY = log(0.7), log(0.05)
"""Of the token that the proposer holds for right, and of each other one."""


@dataclass(slots=True)
class _Session:
    """What follows the prompt, as far as recorded, and how many tokens of that the session has."""

    truth: tuple[int, ...]
    at: int
    right: bool
    """Whether all its tokens are the recorded ones."""

    def add(self, token_ids: Sequence[int]) -> None:
        end = self.at + len(token_ids)
        self.right = self.right and self.truth[self.at : end] == tuple(token_ids)
        self.at = end

    def expected(self, level: int) -> int:
        """The true token so many levels below the present ones; 0 where that is not known."""
        at = self.at + level
        return self.truth[at] if self.right and at < len(self.truth) else 0


class _Reading(NamedTuple):
    """What a proposer reads for some requests."""

    proposer: BoundaryProposer
    requests: Sequence[DraftRequest]
    begun: float

    def wait(self, seconds: float) -> bool:
        return self.proposer.wait(seconds)

    def device_trees(self) -> None:
        return None

    def result(self) -> list[TokenTree | None]:
        return self.proposer.finish(self.requests, self.begun)


class BoundaryProposer(Proposer):
    """See the module. Trees are a chain as deep as the plan says, and other children of its nodes in turn."""

    def __init__(self, options: ProposerOptions, plan: DraftPlan) -> None:
        self.name = options.name
        self.max_nodes = plan.rows
        self.max_depth = plan.depth
        self._plan = plan
        self.feature_boundaries = plan.boundaries
        self.state_device = options.device
        self.shares_thread = options.device != CPU
        columns = len(plan.boundaries) * plan.hidden_size
        self._reader = DeviceReader(plan.size, plan.depth, options.device, columns)
        self._continuations: dict[str, tuple[int, ...]] = {}
        self._vocabulary = 0
        self._sessions: dict[int, _Session] = {}
        self._trees: deque[tuple[float, float, float]] = deque(maxlen=KEPT)
        self._rows = self._on_device = 0

    def bind(self, target: Target) -> None:
        self._vocabulary = target.vocab_size
        self._continuations = read_continuations(Path(self._plan.continuations))

    def open(self, session: int, opening: Opening) -> None:
        prompt = opening.token_ids[: opening.prompt_length]
        key = continuation_key(prompt, opening.sampling.temperature, opening.sampling.seed)
        entered = self._sessions[session] = _Session(self._continuations.get(key, ()), 0, right=True)
        entered.add(opening.token_ids[opening.prompt_length :])

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._sessions[session].add(token_ids)

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        self._rows += len(features)
        self._on_device += len(features) if features.is_cuda else 0
        self._reader.take(features)

    def close(self, session: int) -> None:
        self._sessions.pop(session, None)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return self.begin(requests).result()

    def begin(self, requests: Sequence[DraftRequest]) -> _Reading:
        begun = time.perf_counter()
        self._reader.begin(self._plan.depth)
        return _Reading(self, requests, begun)

    def wait(self, seconds: float) -> bool:
        """Whether the reading that was begun is done, after so many seconds at most."""
        return self._reader.wait(seconds)

    def finish(self, requests: Sequence[DraftRequest], begun: float) -> list[TokenTree | None]:
        """The trees, once what was begun at that time is read."""
        seconds = self._reader.finish()
        trees: list[TokenTree | None] = [self._tree(request) for request in requests]
        self._trees.append((begun, time.perf_counter(), seconds))
        return trees

    def shut_down(self) -> None:
        report = DraftReport(tuple(self._trees), self._rows, self._on_device, self._reader.nbytes)
        report.write(Path(self._plan.report))

    def _tree(self, request: DraftRequest) -> TokenTree:
        session = self._sessions[request.session]
        nodes = min(request.max_nodes, self._plan.rows) - 1
        depth = min(request.max_depth, self._plan.depth, nodes)
        truth = [session.expected(level) for level in range(depth)]
        tokens = [self._after(token, level >= self._plan.right) for level, token in enumerate(truth)]
        parents = list(range(-1, depth - 1))
        scores = [_LIKELY * (level + 1) for level in range(depth)]
        for index in range(nodes - depth):
            level, turn = index % depth, index // depth
            tokens.append(self._after(truth[level], 2 + turn))
            parents.append(level - 1)
            scores.append(_LIKELY * level + _UNLIKELY)
        return TokenTree(tuple(tokens), tuple(parents), tuple(scores))

    def _after(self, token: int, distance: int) -> int:
        """Another token than this one, unless the distance is 0."""
        return (token + distance) % self._vocabulary


def create(options: ProposerOptions) -> Proposer:
    """`options.argument` is the file of a `DraftPlan`."""
    return BoundaryProposer(options, DraftPlan.read(Path(options.argument)))
