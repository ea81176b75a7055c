"""Runs a real verify loop in the test's process, with drafters that exist only in tests."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slipstream.generation_types import FinishReason, PositionLogprobs
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import VerifiedTree
from verify_service.core.draft_source import Committed, DraftSource, NoDrafts, RequestOpening
from verify_service.core.engine_config import EngineConfig
from verify_service.core.guarded_source import GuardedSource
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams, StepOutput
from verify_service.core.request_state import RequestState
from verify_service.engine.sink import Sink
from verify_service.engine.verify_loop import VerifyLoop
from verify_service.grammar.compiler import GrammarCompiler
from verify_service.model_runner.logprobs import logprob_entries
from verify_service.scheduler.admission import Admission

PROPOSER = "test"
Target = CausalLM | Callable[[EngineConfig], Any]
"""A model, or what prepares one for an engine of that size."""


@dataclass(slots=True)
class Answer:
    """All that one request was told."""

    outputs: list[StepOutput] = field(default_factory=list)
    prompt: tuple[int, ...] = ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for output in self.outputs for token in output.token_ids)

    @property
    def logprobs(self) -> tuple[PositionLogprobs, ...]:
        return tuple(entry for output in self.outputs for entry in output.logprobs)

    @property
    def prompt_scores(self) -> tuple[PositionLogprobs, ...]:
        """Those of the prompt's tokens from the second on, which come in order and before any token."""
        entries: list[PositionLogprobs] = []
        for output in self.outputs:
            scores = output.prompt_scores
            if scores is not None:
                assert not (output.token_ids or output.finish_reason) and scores.first == 1 + len(entries)
                chosen = self.prompt[scores.first : scores.first + len(scores.logprobs)]
                arrays = scores.logprobs, scores.ranks, scores.top_ids, scores.top_logprobs
                entries.extend(logprob_entries(np.array(chosen, dtype=np.int32), *arrays))
        told = [output.prompt_scores is not None for output in self.outputs]
        assert told == sorted(told, reverse=True)
        return tuple(entries)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[-1].finish_reason if self.outputs else None

    @property
    def last(self) -> StepOutput:
        return self.outputs[-1]


class LoopRunner:
    """A started verify loop and the answers it gave so far."""

    def __init__(
        self,
        target: Target,
        config: EngineConfig,
        drafts: DraftSource | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.model = target if isinstance(target, CausalLM) else target(config)
        self.answers: dict[RequestKey, Answer] = {}
        self._changed = threading.Condition()
        self.loop = VerifyLoop(self.model, config, drafts or NoDrafts(), Sink(self._take), grammars)

    def _take(self, outputs: list[StepOutput]) -> None:
        with self._changed:
            for output in outputs:
                self.answers.setdefault(output.key, Answer()).outputs.append(output)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait until the answers satisfy `condition`."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout), "the loop did not get there in time"

    def finished(self, key: RequestKey) -> bool:
        return key in self.answers and self.answers[key].finish_reason is not None

    def run(self, requests: Sequence[GenerationRequest], concurrency: int = 0) -> list[Answer]:
        """Answers of `requests`, in order, at most `concurrency` of them at a time (0: all)."""
        keys = [request.key for request in requests]
        width = concurrency or len(requests)
        for first in range(0, len(requests), width):
            part = requests[first : first + width]
            for request in part:
                self.loop.submit(request)
            self.wait_for(lambda part=part: all(self.finished(request.key) for request in part))
        for request in requests:
            self.answers[request.key].prompt = request.prompt_token_ids
        return [self.answers[key] for key in keys]


@contextmanager
def running_loop(
    target: Target,
    config: EngineConfig,
    drafts: DraftSource | None = None,
    grammars: GrammarCompiler | None = None,
) -> Iterator[LoopRunner]:
    """A started loop. At the end no page may be held by anyone but the prefix cache."""
    runner = LoopRunner(target, config, drafts, grammars)
    runner.loop.start()
    try:
        yield runner
        assert runner.loop.wait_idle(60.0)
        state = runner.loop.state()
        assert state.running == state.queued == 0
        assert state.pages_free == state.pages_total - state.pages_cached
    finally:
        runner.loop.stop()


class OnHost(GuardedSource):
    """A source whose drafters draft after each step alone, never behind one."""

    def drafts_on_device(self) -> bool:
        return False

    def allow_device_trees(self, allowed: bool) -> None:
        return None


class ScriptedTrees(NoDrafts):
    """Base of test drafters: keeps each request's tokens, and makes a tree whenever one was asked for."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.tokens: dict[RequestKey, list[int]] = {}
        self.budgets: dict[RequestKey, tuple[int, int]] = {}
        self.openings: list[RequestOpening] = []
        self.ended: list[tuple[RequestKey, FinishReason]] = []
        self.trees = 0
        self.drafted = self.accepted = 0
        """Nodes of trees that steps are said to have verified, and accepted."""

    def known(self, name: str) -> bool:
        return name == PROPOSER

    def default(self) -> str | None:
        return PROPOSER

    def begin(self, opening: RequestOpening) -> bool:
        assert opening.key not in self.tokens
        self.openings.append(opening)
        self.tokens[opening.key] = list(opening.token_ids)
        return True

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        for committed in commits:
            self.tokens[committed.key].extend(committed.token_ids)
            assert len(self.tokens[committed.key]) == committed.total_length
            self.budgets[committed.key] = (committed.max_nodes, committed.max_depth)
            self._count(committed.verified)
        return ()

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        trees: list[TokenTree | None] = []
        for key in wanted:
            max_nodes, max_depth = self.budgets.pop(key)
            assert max_nodes > 1
            assert max_depth > 0
            tree = self.propose(key, max_nodes - 1, max_depth)
            if tree is not None:
                self.trees += 1
                tree.validate(vocab_size=1 << 30, max_nodes=max_nodes - 1, max_depth=max_depth)
            trees.append(tree)
        return trees

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        assert all(key in self.tokens for key in keys)
        return True

    def end(self, key: RequestKey, reason: FinishReason, verified: Sequence[VerifiedTree] = ()) -> None:
        del self.tokens[key]
        self.budgets.pop(key, None)
        self.ended.append((key, reason))
        self._count(verified)

    def _count(self, verified: Sequence[VerifiedTree]) -> None:
        for tree, nodes in verified:
            self.drafted += len(tree)
            self.accepted += len(nodes)

    def propose(self, key: RequestKey, nodes: int, depth: int) -> TokenTree | None:
        """A tree of at most `nodes` nodes and `depth` levels below the request's last token."""
        raise NotImplementedError


class RandomTrees(ScriptedTrees):
    """Irregular trees of random tokens, some of them the request's own; now and then none at all."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        super().__init__(seed)
        self._vocab_size = vocab_size

    def propose(self, key: RequestKey, nodes: int, depth: int) -> TokenTree | None:
        pick = self.random
        if pick.random() < 0.1:
            return None
        token_ids: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        for _ in range(pick.randint(0, nodes)):
            parent = pick.choice([-1, *range(len(depths))][-6:])
            below = 1 if parent < 0 else depths[parent] + 1
            if below > depth:
                continue
            token_ids.append(pick.choice([pick.randrange(self._vocab_size), pick.choice(self.tokens[key])]))
            parents.append(parent)
            depths.append(below)
        return TokenTree(tuple(token_ids), tuple(parents))


class OracleTrees(ScriptedTrees):
    """Knows each request's whole text and hides its continuation, 1 to 63 deep, among decoys that branch off it."""

    def __init__(self, texts: Mapping[RequestKey, Sequence[int]], vocab_size: int, seed: int = 0) -> None:
        super().__init__(seed)
        self._texts = texts
        self._vocab_size = vocab_size

    def propose(self, key: RequestKey, nodes: int, depth: int) -> TokenTree | None:
        at = len(self.tokens[key])
        pick = self.random
        deepest = min(depth, nodes, max(1, len(self._texts[key]) - at))
        if pick.random() < 0.5:
            deepest = pick.randint(1, deepest)
        truth = list(self._texts[key][at : at + deepest])
        decoys = pick.randint(0, min(nodes - len(truth), 24))
        return self._hide(truth, decoys, depth)

    def _hide(self, truth: list[int], decoys: int, depth: int) -> TokenTree:
        pick = self.random
        token_ids: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        path = [-1]

        def add(token: int, parent: int) -> None:
            token_ids.append(token)
            parents.append(parent)
            depths.append(1 if parent < 0 else depths[parent] + 1)

        due = [True] * len(truth) + [False] * decoys
        pick.shuffle(due)
        for true in due:
            if true:
                add(truth[len(path) - 1], path[-1])
                path.append(len(token_ids) - 1)
                continue
            parent = pick.choice([*path, *range(-1, len(token_ids))])
            if parent < 0 or depths[parent] < depth:
                avoided = truth[path.index(parent)] if parent in path and path.index(parent) < len(truth) else -1
                token = pick.randrange(self._vocab_size - 1)
                add(token + (token >= avoided >= 0), parent)
        return TokenTree(tuple(token_ids), tuple(parents))


def admitted(
    config: EngineConfig,
    prompt: Sequence[int],
    *,
    request_id: int = 0,
    output: Sequence[int] = (),
    sampling: SamplingParams = SamplingParams(seed=0),  # noqa: B008 - frozen
    tenant: str = "",
    weight: float = 1.0,
    trees: DraftSource | None = None,
) -> RequestState:
    """The state of a request as admission leaves it, in a vocabulary of 512 and a context of 512."""
    desk = Admission(config, trees or NoDrafts(), vocab_size=512, max_context=512, eos_token_ids=(2,))
    state = desk.admit(
        GenerationRequest(
            RequestKey(0, request_id),
            tuple(prompt),
            arrival=0.0,
            output_token_ids=tuple(output),
            sampling=sampling,
            tenant=tenant,
            weight=weight,
        )
    )
    state.parameters = replace(state.parameters, arrival_number=request_id)
    return state
