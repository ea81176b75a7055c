"""Rounds of the verify loop's drafting in virtual time: real decisions, and a GPU and a drafter that are formulas."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from slipstream_kernels.draft_protocol.records import RoundCost
from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import ScriptedTrees, admitted
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.draft_source import Committed
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import RequestKey
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.core.step_time_model import PROFILED_CONTEXT, StepTimeModel
from verify_service.draft_link.routing.hidden_state_feed import step_bytes
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.speculation.acceptance_model import AcceptanceModel
from verify_service.speculation.controller import SpeculationController
from verify_service.speculation.goodput import GoodputOptimizer

_PROMPT = range(10, 40)
_DEPTH = 5
H200 = (
    *((1, rows, 1e-3 * ms) for rows, ms in ((1, 4.22), (4, 4.50), (16, 4.54), (32, 4.82), (64, 5.20))),
    *((4, rows, 1e-3 * ms) for rows, ms in ((4, 4.40), (16, 4.73), (32, 5.00), (64, 5.32), (128, 6.80), (256, 10.4))),
    *((16, rows, 1e-3 * ms) for rows, ms in ((16, 5.10), (32, 5.6), (64, 5.91), (128, 7.30), (256, 10.6), (512, 19.3))),
    *((64, rows, 1e-3 * ms) for rows, ms in ((64, 6.90), (128, 10.1), (256, 13.4), (512, 21.0), (1024, 34.9))),
)
"""(requests, rows, seconds) of passes of an 8B model, about as measured on one."""
H200_TO_256 = (
    *H200,
    *((256, rows, 1e-3 * ms) for rows, ms in ((256, 17.3), (512, 26.0), (1024, 42.0))),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a GPU, a drafter on it and the host take, in milliseconds.

    passes: (requests, rows, seconds) of passes at a context of 1,024 tokens.
    text, level: of a draft round, before its first level and for each; a constant and what a request adds.
    host: from the end of a pass to the draft, and from the trees to the next pass, together 1.5 times this.
    experts: of a mixture, whose passes are of rows that choose independently; `counts`: what the likeliest child of a
    row, and a sibling of it, count as then. told: whether the engine tells how many experts passes wake.
    shared: of the time in which the drafter takes in texts, how much passes beside it take longer. It takes in all that
    it is told of a request in one go, for `text` and then `row` for each token.
    """

    passes: Sequence[tuple[int, int, float]] = H200
    text: tuple[float, float] = (0.15, 0.02)
    level: tuple[float, float] = (0.2, 0.023)
    host: tuple[float, float] = (0.15, 0.022)
    experts: ExpertForm | None = None
    counts: tuple[float, float] = (1.0, 1.0)
    told: bool = True
    shared: float = 0.0
    row: float = 0.0

    def draft_seconds(self, requests: int, levels: int) -> float:
        return 1e-3 * (_linear(self.text, requests) + levels * _linear(self.level, requests))

    def host_seconds(self, requests: int) -> float:
        return 1e-3 * _linear(self.host, requests)

    def pass_seconds(self, requests: int, nodes: int = 0, context: float = 1024) -> float:
        beyond = requests * (context - PROFILED_CONTEXT) * _KV_SECONDS
        return StepTimeModel(self.passes).seconds(requests, nodes) + beyond

    def best_fixed(self, requests: int, *, chance: float = 0.7, context: float = 1024, slow: float = 1.0) -> float:
        """Tokens a second over those of plain decoding, with that chain of a fixed budget with which they are most."""
        plain, best = self.pass_seconds(requests, context=context), 1.0
        for levels in range(1, _DEPTH + 1):
            tokens = sum(chance**level for level in range(levels + 1))
            draft = slow * self.draft_seconds(requests, levels) + 1.5 * self.host_seconds(requests)
            best = max(best, tokens * plain / (self.pass_seconds(requests, levels * requests, context) + draft))
        return best


def _linear(line: tuple[float, float], requests: int) -> float:
    return line[0] + line[1] * requests


SLOW_HEAD = Machine()
"""A head that takes 1.3 ms for a chain of 5 of one request, 3.3 of 16, 9.8 of 64, and a host that takes as long."""
FAST_HEAD = Machine(H200_TO_256, text=(0.2, 0.007), level=(0.16, 0.0009), host=(0.1, 0.003))
"""A head within the process that takes 1.0 ms for a chain of 5 of one request, 1.2 of 16, 1.7 of 64, 4.0 of 256."""
DRAFT_MODEL = Machine(H200_TO_256, text=(0.5, 0.01), level=(1.0, 0.01), host=(0.15, 0.01))
"""A small model of its own, which takes 5.6 ms for a chain of 5 of one request, and 9.3 of 64."""
_KV_SECONDS = 131072 / 4.26e12
"""To read the keys and values of one token of context."""


class Head(ScriptedTrees):
    """Drafts the likeliest nodes; at every place its children are right as often as `chances` says.

    It takes `slow` times as long as it should. `lacking`: bytes of states of each request that it has yet to be sent.
    """

    def __init__(self, clock: SimpleNamespace, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self.chances: Sequence[float] = (0.7,)
        self.slow = 1.0
        self.lacking: dict[RequestKey, int] = {}
        self.sent = 0
        self.running = 0
        self.busy = 0.0
        """Seconds of work on texts that is left."""
        self._read: dict[RequestKey, int] = {}
        self.costs: Sequence[RoundCost] = [
            RoundCost(requests, levels, machine.draft_seconds(requests, levels))
            for requests in (1, 4, 16, 64)
            for levels in (1, _DEPTH)
        ]
        """What it says that its rounds take: what they do, as measured by itself."""
        self._clock = clock
        self._turn = 0
        self._asked: dict[RequestKey, Committed] = {}
        self._ready = 0.0

    def round_costs(self, proposer: str) -> Sequence[RoundCost]:
        return self.costs

    def most_levels(self, proposer: str) -> int:
        return _DEPTH

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        room, self._turn = step_bytes(self.running), self._turn + 1
        catching_up = [each.key for each in commits if each.catch_up and self.lacking.get(each.key, 0)]
        start = self._turn % max(1, len(catching_up))
        self.sent = 0
        for key in catching_up[start:] + catching_up[:start]:
            part = min(room - self.sent, self.lacking[key])
            self.lacking[key] -= part
            self.sent += part
        behind = {each.key for each in commits if self.lacking.get(each.key, 0)}
        for each in commits:
            rows = each.total_length - self._read.get(each.key, 0)
            self._read[each.key] = each.total_length
            self.busy += 1e-3 * (self._machine.text[0] + self._machine.row * rows)
        self._asked = {each.key: each for each in commits if each.max_nodes > 1 and each.key not in behind}
        if self._asked:
            levels = min(_DEPTH, max(each.max_depth for each in self._asked.values()))
            drafting = self.slow * self._machine.draft_seconds(len(self._asked), levels)
            self._ready = self._clock.now + self._machine.host_seconds(self.running) + drafting
        return behind

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        asked = [self._asked.get(key) for key in wanted]
        if any(asked):
            self._clock.now = max(self._clock.now, self._ready)
        return [None if each is None else self._tree(each.max_nodes - 1, min(_DEPTH, each.max_depth)) for each in asked]

    def _tree(self, nodes: int, depth: int) -> TokenTree:
        """Of all trees with so many nodes the likeliest."""
        parents: list[int] = []
        logs: list[float] = []
        heap = [(-chance, rank, -1, 1) for rank, chance in enumerate(self.chances)]
        while heap and len(parents) < nodes:
            chance, rank, parent, level = heapq.heappop(heap)
            parents.append(parent)
            logs.append(math.log(-chance))
            for child, factor in enumerate(self.chances if level < depth else ()):
                heapq.heappush(heap, (chance * factor, len(self.chances) * rank + child, len(parents) - 1, level + 1))
        return TokenTree(tuple(range(1, len(parents) + 1)), tuple(parents), tuple(logs))


@dataclass(frozen=True, slots=True)
class Round:
    """One step: its requests, seconds, nodes, the tokens it brought, and those it brings on average."""

    requests: int
    seconds: float
    nodes: int
    tokens: int
    expected: float


class Rounds:
    """Steps of `running` requests, which end after `tokens` and give way to others; without, they do not end.

    `lacking` bytes of states of a request's prompt have to reach the head first, as after a prefix hit.
    `levels`: a fixed budget of that depth in a chain instead of the controller's; 0 for plain decoding.
    `costs`: what the head says that its rounds take, if not what they do; () where it does not say.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        running: int,
        *,
        tokens: int = 10**6,
        lacking: int = 0,
        machine: Machine = SLOW_HEAD,
        levels: int | None = None,
        costs: Sequence[RoundCost] | None = None,
    ) -> None:
        self._clock = SimpleNamespace(now=0.0)
        for module in ("on_device_trees", "draft_latency"):
            monkeypatch.setattr(
                f"verify_service.speculation.{module}.time", SimpleNamespace(perf_counter=lambda: self._clock.now)
            )
        self._random = random.Random(running)
        self._machine, self._levels = machine, levels
        self.context = PROFILED_CONTEXT
        """Tokens that each request has before it; those that a round adds are not counted."""
        monkeypatch.setattr("verify_service.speculation.controller.mean_context", lambda _: self.context)
        self._costs = StepTimeModel(machine.passes)
        most = max(requests for requests, *_ in machine.passes)
        self._config = EngineConfig(num_pages=1 << 17, page_size=16, max_running=most, step_nodes=1024)
        self._memory = KVCacheManager(self._config, 1 << 20)
        self._tokens, self._lacking = tokens, lacking
        self.head = Head(self._clock, machine)
        if costs is not None:
            self.head.costs = costs
        measured = ((requests, rows, s * self._random.uniform(0.97, 1.03)) for requests, rows, s in machine.passes)
        optimizer = GoodputOptimizer(StepTimeModel(measured, machine.experts), AcceptanceModel())
        self.drafting = SpeculationController(self.head, self._memory, self._config, optimizer)
        self._states: list[RequestState] = []
        self._begun = 0
        self._decided_at = 0.0
        self.resize(running)

    def resize(self, running: int) -> None:
        """Go on with so many requests: the first ones, or more."""
        del self._states[running:]
        self.head.running = running
        while len(self._states) < running:
            left = self._tokens * (running - len(self._states)) // running if self._begun < running else self._tokens
            self._begin(left)

    def run(self, steps: int) -> tuple[float, float, float]:
        """Throughput over that of plain decoding, seconds a step, and nodes a step and request."""
        rounds = self.rounds(steps)
        seconds, running = sum(each.seconds for each in rounds), len(self._states)
        nodes = sum(each.nodes for each in rounds)
        plain = seconds / self.plain_seconds(running) * running
        return sum(each.tokens for each in rounds) / plain, seconds / steps, nodes / steps / running

    def rounds(self, steps: int) -> list[Round]:
        return [self._step() for _ in range(steps)]

    def plain_seconds(self, requests: int, nodes: float = 0) -> float:
        """Of a pass of so many requests without trees, or with some nodes, at the present context."""
        beyond = requests * (self.context - PROFILED_CONTEXT) * _KV_SECONDS
        return float(self._costs.predict(requests, np.array([nodes], float))[0]) + beyond

    def share_of_plain(self, rounds: Iterable[Round]) -> float:
        """Tokens a second, as they are on average, over those of plain decoding at the present context."""
        rounds = list(rounds)
        plain = sum(each.expected / each.requests * self.plain_seconds(each.requests) for each in rounds)
        return plain / sum(each.seconds for each in rounds)

    def _begin(self, tokens: int) -> None:
        state = admitted(self._config, _PROMPT, request_id=self._begun, trees=self.head)
        if self._levels is not None:
            state.draft.adaptive, state.draft.max_depth, state.draft.max_nodes = False, self._levels, 1 + self._levels
        state.parameters = replace(state.parameters, max_length=len(_PROMPT) + max(1, tokens))
        state.kv.req_index = 0
        self._begun += 1
        self._memory.begin(state)
        self.head.lacking[state.key] = self._lacking
        self.drafting.begin(state)
        self._states.append(state)

    def _step(self) -> Round:
        begun = self._clock.now
        for state in self._states:
            state.kv.num_computed_tokens = len(state.tokens) - 1
        items = [ScheduledRequest(state, 1) for state in self._states]
        if any(state.draft.awaiting_tree for state in self._states):
            self.drafting.attach_trees(items)
            self._clock.now += self._machine.host_seconds(len(items)) / 2
        idle = self._clock.now - self._decided_at
        nodes = sum(item.num_rows - 1 for item in items)
        expected = sum(1 + self._on_average(item) for item in items)
        rows, awake = self._independent(items, nodes)
        seconds = self.plain_seconds(len(items), rows) * self._random.uniform(0.97, 1.03)
        # States are copied while a pass runs, at 5 GB/s, and read by the drafter on the same GPU.
        seconds = max(seconds, 2e-10 * self.head.sent) + 3e-11 * self.head.sent
        beside = min(seconds, self.head.busy)
        self.head.busy -= beside
        seconds += self._machine.shared * beside
        self._clock.now = self._decided_at = self._clock.now + seconds
        decisions = [VerifyResult(item, self._walk(item), 0) for item in items]
        self.drafting.settle_wait(idle, len(items))
        self.drafting.observe_step(decisions, len(items), nodes, seconds, awake)
        going_on, output = [], 0
        for item, walk, *_ in decisions:
            state = item.state
            tokens = walk.tokens[: state.parameters.max_length - len(state.tokens)]
            state.tokens.extend(tokens)
            output += len(tokens)
            if len(state.tokens) < state.parameters.max_length:
                going_on.append((state, tokens))
            else:
                state.finished = True
                self._memory.end(state, keep=False)
                self._states.remove(state)
                self._begin(self._tokens)
        self.drafting.send_commits(going_on, len(self._states))
        return Round(len(items), self._clock.now - begun, nodes, output, expected)

    def _independent(self, items: Sequence[ScheduledRequest], nodes: int) -> tuple[float, int]:
        """What a step's nodes count as, and how many experts its rows wake, by what is told."""
        known = self.drafting.experts
        if known is None:
            return nodes, 0
        children = sum(len(set(item.tree.parents)) for item in items if item.tree is not None)
        first, other = self._machine.counts
        rows = first * children + other * (nodes - children)
        awake = known.independent(len(items) + rows) * self._random.uniform(0.97, 1.03)
        return rows, int(awake) if self._machine.told else 0

    def _on_average(self, item: ScheduledRequest) -> float:
        """Nodes of its tree that are right, on average."""
        if item.tree is None:
            return 0.0
        chances: list[float] = []
        ranks: dict[int, int] = {}
        for parent in item.tree.parents:
            rank = ranks[parent] = ranks.get(parent, -1) + 1
            above = 1.0 if parent < 0 else chances[parent]
            chances.append(above * (self.head.chances[rank] if rank < len(self.head.chances) else 0.0))
        return sum(chances)

    def _walk(self, item: ScheduledRequest) -> AcceptedPath:
        tree, at, path = item.tree, -1, []
        while tree is not None and (children := tree.children(at)):
            draw, at = self._random.random(), -1
            for child, chance in zip(children, self.head.chances, strict=False):
                draw -= chance
                if draw < 0:
                    at = child
                    break
            if at < 0:
                break
            path.append(at)
        return AcceptedPath(tuple(path), tuple(1 for _ in (*path, 0)))
