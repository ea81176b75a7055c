"""Proposers beside the target draft behind its passes: the same tokens, and the same trees as after the decisions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.speculation.overwritten_trees import OverwrittenTrees, PromisedTrees
from draft_service.heads.loading import load_eagle
from draft_service.in_process import InProcessHost
from draft_service.proposers.base import DraftFuture, DraftRequest, FollowRequest, Opening
from draft_service.proposers.eagle.base import EagleConfig
from draft_service.proposers.eagle.gpu import GpuEagleProposer
from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import UnavailableError
from slipstream_kernels.device_tree import DeviceTree, known
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound
from slipstream_kernels.token_tree import TokenTree
from support.eagle_heads import EAGLE3, Shape, write_head
from support.request_mix import Expected, assert_equal, some_requests
from support.verify_loop import LoopRunner, OnHost, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey
from verify_service.core.request_state import RequestState
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import LinkFacts
from verify_service.draft_link.transports.in_process import attach_host
from verify_service.speculation.tree_sizing import TreeSizer

TOKENS, ROWS, DEPTH, VOCAB, HIDDEN = 24, 6, 3, 512, 128
CONFIG = EngineConfig(
    num_pages=100, max_running=4, prefill_chunk=64, step_nodes=20, max_nodes=ROWS, max_context=512, adaptive=False
)
NOBODYS = VOCAB - 1
"""A token that no answer has, so that what is drafted with it is wrong."""
SEEDED = pytest.mark.parametrize("work", [0.8], ids=["seeded"], indirect=True)


class Drafter(GpuEagleProposer):
    """Drafts as ever, then hands over trees of the answers themselves, wrong from some level on.

    Keeps what it drafted, by the tokens that it followed, and counts the rounds behind passes.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        config = EagleConfig(
            max_depth=DEPTH,
            top_k=2,
            max_nodes=ROWS,
            boundaries="0-1-2",
            max_tokens=2048,
            max_context=512,
            max_sessions=8,
        )
        super().__init__("p", load_eagle(folder, target), config, "cpu:0")
        self.answers: list[tuple[int, ...]] = []
        self.texts: dict[int, list[int]] = {}
        self.drafted: dict[tuple[int, ...], TokenTree] = {}
        self.penalised: set[int] = set()
        self.unread = True
        """Whether trees are handed over while only the device knows them."""
        self.empty_every = 0
        """At which lengths of text a tree is empty."""
        self.rounds = self.asked = self.behind = self.handed = self.emptied = self.taken = 0
        self.at_read: Callable[[], None] = lambda: None
        """Told, on the loop's thread, of each tree of a device that is read."""
        self.at_first: Callable[[Sequence[int]], None] = lambda _: None
        """Told of the sessions of the first round behind a pass, which is under way, on the loop's thread."""

    def open(self, session: int, opening: Opening) -> None:
        super().open(session, opening)
        self.texts[session] = list(opening.token_ids)
        if opening.sampling.repetition_penalty != 1:
            self.penalised.add(session)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        super().commit(session, token_ids)
        self.texts[session] += token_ids

    def close(self, session: int) -> None:
        super().close(session)
        del self.texts[session]

    def follow(self, requests: Sequence[FollowRequest], outcome: DevicePassResult) -> EnqueuedRound:
        enqueued = super().follow(requests, outcome)
        self.behind += 1
        if self.behind == 1:
            self.at_first([request.session for request in requests])
        return EnqueuedRound(enqueued.read, self.promised(requests, outcome, enqueued))

    def promised(
        self, requests: Sequence[FollowRequest], outcome: DevicePassResult, enqueued: EnqueuedRound
    ) -> dict[int, DeviceTree]:
        asked = [request for request in requests if request.row in enqueued.trees]
        drafted = [enqueued.trees[request.row] for request in asked]

        def make(decided: list[list[int]]) -> Watched:
            self.taken += 1
            trees: list[TokenTree] = []
            for request in asked:
                text = (*self.texts.get(request.session, ()), *decided[request.row])  # of one that is over, anything
                trees.append(self.guess(text, request.max_nodes, request.max_depth))
            return Watched(self, drafted, trees)

        promised = PromisedTrees(drafted, outcome.results, make)
        return {
            request.row: DeviceTree(promised, place, *promised.bounds[place]) for place, request in enumerate(asked)
        }

    def begin(self, requests: Sequence[DraftRequest]) -> Overwriting:
        self.asked += 1
        self.rounds += self._followed is not None
        return Overwriting(self, requests, super().begin(requests))

    def overwritten(self, request: DraftRequest) -> TokenTree:
        return self.guess(tuple(self.texts[request.session]), request.max_nodes, request.max_depth)

    def guess(self, text: tuple[int, ...], max_nodes: int, max_depth: int) -> TokenTree:
        if self.empty_every and len(text) % self.empty_every == 0:
            self.emptied += 1
            return TokenTree((), ())
        answer = next((one for one in self.answers if one[: len(text)] == text), ())
        right = len(text) % (DEPTH + 1)
        path = [*answer[len(text) :][:right], *[NOBODYS] * DEPTH][: min(max_depth, max_nodes - 1)]
        return TokenTree.chain(path)


class Overwriting(DraftFuture):
    def __init__(self, drafter: Drafter, requests: Sequence[DraftRequest], begun: DraftFuture) -> None:
        self.drafter, self.requests, self.begun = drafter, requests, begun

    def wait(self, seconds: float) -> bool:
        return self.begun.wait(seconds)

    def device_trees(self) -> list[TokenTree] | None:
        drafted = self.begun.device_trees() if self.drafter.unread else None
        if drafted is None:
            return None
        self.drafter.handed += 1
        there = [tree for tree in drafted if isinstance(tree, DeviceTree)]
        self.keep(drafted)
        trees = [self.drafter.overwritten(request) for request in self.requests]
        most = [(tree.most_nodes, tree.most_depth) for tree in there]
        assert all(len(tree) <= nodes and tree.depth <= depth for tree, (nodes, depth) in zip(trees, most, strict=True))
        overwritten = Watched(self.drafter, there, trees)
        return [DeviceTree(overwritten, row, *bounds) for row, bounds in enumerate(most)]

    def result(self) -> list[TokenTree | None]:
        trees = self.begun.result()
        self.keep(trees)
        return [self.drafter.overwritten(request) for request in self.requests]

    def keep(self, trees: Sequence[TokenTree | None]) -> None:
        for request, tree in zip(self.requests, trees, strict=True):
            assert tree is not None
            assert len(tree) < request.max_nodes and tree.depth <= request.max_depth
            if request.session not in self.drafter.penalised:  # there the tokens of the pass itself do not count yet
                self.drafter.drafted[tuple(self.drafter.texts[request.session])] = known(tree) or tree


class Watched(OverwrittenTrees):
    def __init__(self, drafter: Drafter, drafted: Sequence[DeviceTree], trees: Sequence[TokenTree]) -> None:
        super().__init__(drafted, trees)
        self.drafter = drafter

    def read(self, row: int) -> TokenTree:
        self.drafter.at_read()
        return super().read(row)


@pytest.fixture(scope="module")
def head(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eagle") / "head"
    write_head(folder, EAGLE3["whole vocabulary"], Shape(HIDDEN, 96, 4, 2, VOCAB))
    return folder


class Served(NamedTuple):
    runner: LoopRunner
    link: DraftLink
    host: InProcessHost
    attachment: Attachment


@contextmanager
def served(twins: Target, drafter: Drafter, *, follows: bool = True, config: EngineConfig = CONFIG) -> Iterator[Served]:
    """At the end no session is left."""
    facts = LinkFacts("m", "", VOCAB, HIDDEN, 2, 512, ROWS, feature_boundaries=(0, 1, 2, 3), most_boundaries=3)
    link = DraftLink(facts, LinkConfig(deadline=30.0))
    host = InProcessHost([drafter])
    attachment = attach_host(link, host, device="cpu:0", max_step_rows=100)
    runner = LoopRunner(twins, config, link if follows else OnHost(link))
    runner.loop.start()
    try:
        yield Served(runner, link, host, attachment)
    finally:
        runner.loop.stop()
        link.close()
        host.stop(30.0)
    assert not drafter.texts


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "seeded"])
def work(request: pytest.FixtureRequest, twins: Target) -> tuple[list[GenerationRequest], list[Expected]]:
    """Requests, and what they are answered without drafters."""
    requests = [
        replace(one, sampling=replace(one.sampling, logprobs=None)) for one in some_requests(request.param, TOKENS)
    ]
    with running_loop(twins, CONFIG) as runner:
        answers = runner.run(requests)
    expected: list[Expected] = []
    for answer in answers:
        assert answer.finish_reason is not None
        expected.append((answer.token_ids, (), answer.finish_reason))
    return requests, expected


def texts_of(work: tuple[list[GenerationRequest], list[Expected]]) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids + tokens for request, (tokens, _, _) in zip(*work, strict=True)]


def deepest(wishes: TreeSizer, states: Sequence[RequestState], running: int) -> list[int]:
    return [min(DEPTH, max(0, state.depth_left)) for state in states]


def run(
    twins: Target,
    drafter: Drafter,
    work: tuple[list[GenerationRequest], list[Expected]],
    at_once: int,
    *,
    follows: bool,
) -> int:
    """Check the answers; returns how many drafted tokens were accepted."""
    requests, expected = work
    drafter.answers = texts_of(work)
    with served(twins, drafter, follows=follows) as (runner, _, _, _):
        assert_equal(runner.run(requests, at_once), expected)
        return runner.loop.state().accepted_tokens


def assert_alike(behind: Drafter, after: Drafter) -> None:
    """What both drafted for the same text is the same, as far as either was asked for."""
    both = behind.drafted.keys() & after.drafted.keys()
    assert len(both) > 5
    for text in both:
        one, other = behind.drafted[text], after.drafted[text]
        nodes, depth = min(len(one), len(other)), min(one.depth, other.depth)
        assert one.truncated(nodes, depth) == other.truncated(nodes, depth)


def test_trees_begun_behind_passes_are_those_made_after_them(twins: Target, head: Path, tiny_model: Path, work) -> None:
    behind, after = Drafter(head, tiny_model), Drafter(head, tiny_model)
    accepted = [run(twins, behind, work, 1, follows=True), run(twins, after, work, 1, follows=False)]
    assert accepted[0] >= accepted[1] > 20  # one that is verified untold may reach beyond an answer's end
    assert after.rounds == after.taken == 0
    assert behind.taken > 0.6 * behind.rounds
    assert behind.rounds >= behind.asked - len(work[0]) > 20  # all but the first of each request
    assert behind.handed > 0.3 * behind.rounds  # but where an answer ends within the tree, or the host is slow
    assert behind.drafted.keys() == after.drafted.keys()
    assert_alike(behind, after)
    assert any(len(tree) > DEPTH for tree in behind.drafted.values())


def test_tokens_of_requests_that_come_and_go_are_those_of_plain_decoding(
    twins: Target, head: Path, tiny_model: Path, work
) -> None:
    drafter = Drafter(head, tiny_model)
    assert run(twins, drafter, work, 0, follows=True) > 20
    assert drafter.rounds > 0.5 * drafter.asked


@SEEDED
def test_a_budget_that_chooses_nodes_takes_trees_whole_for_one_request_alone(
    twins: Target, head: Path, tiny_model: Path, work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TreeSizer, "depths", deepest)
    requests, expected = work
    drafter = Drafter(head, tiny_model)
    drafter.answers, drafter.empty_every = texts_of(work), 3
    with served(twins, drafter, config=replace(CONFIG, adaptive=True)) as (runner, link, _, _):
        untold: list[int] = []

        def at_read() -> None:
            (text,) = drafter.texts.values()
            (answer,) = [one for one in runner.answers.values() if one.finish_reason is None]
            (request,) = [one for one in requests if runner.answers.get(one.key) is answer]
            untold.append(len(text) - len(request.prompt_token_ids) - len(answer.token_ids))

        drafter.at_read = at_read
        assert_equal(runner.run(requests, 1), expected)
        assert len(untold) > 10 and max(untold) <= 0, "clients are told of a step before the next one's trees are read"
        assert runner.loop.state().accepted_tokens > 20
        assert link.state().waits >= drafter.handed - drafter.emptied > 10
    assert drafter.emptied > 4


def test_sized_trees_of_requests_that_come_and_go_are_verified_untold(
    twins: Target, head: Path, tiny_model: Path, work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TreeSizer, "depths", deepest)
    requests, expected = work
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    with served(twins, drafter, config=replace(CONFIG, adaptive=True)) as (runner, _, _, _):
        assert_equal(runner.run(requests), expected)
        assert runner.loop.state().accepted_tokens > 20
    assert drafter.taken > 4


@SEEDED
@pytest.mark.parametrize("levels", [(DEPTH, DEPTH, 0, DEPTH, 0, 0), (DEPTH, 1, 2)], ids=["some for none", "varying"])
def test_steps_may_ask_for_other_trees_than_were_begun_behind_them(
    twins: Target, head: Path, tiny_model: Path, work, levels: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def depths(wishes: TreeSizer, states: Sequence[RequestState], running: int) -> list[int]:
        return [min(next(asked), max(0, state.depth_left)) for state in states]

    monkeypatch.setattr(TreeSizer, "depths", depths)
    behind, after = Drafter(head, tiny_model), Drafter(head, tiny_model)
    for drafter in (behind, after):
        asked = cycle(levels)
        run(twins, drafter, work, 1, follows=drafter is behind)
    assert 10 < behind.rounds <= behind.asked
    assert behind.taken > 5
    if 0 in levels:
        assert_alike(behind, after)


@SEEDED
def test_a_request_is_cancelled_while_its_round_is_under_way(
    twins: Target, head: Path, tiny_model: Path, work: tuple[list[GenerationRequest], list[Expected]]
) -> None:
    requests, expected = work
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    gone: list[int] = []

    def cancel(sessions: Sequence[int]) -> None:
        text = tuple(drafter.texts[sessions[0]])
        gone.append(next(i for i, answer in enumerate(drafter.answers) if answer[: len(text)] == text))
        runner.loop.cancel(requests[gone[0]].key)

    with served(twins, drafter) as (runner, _, _, _):
        drafter.at_first = cancel
        answers = runner.run(requests)
    for index, (answer, one) in enumerate(zip(answers, expected, strict=True)):
        if index in gone:
            assert answer.finish_reason is FinishReason.CANCELLED
            assert 0 < len(answer.token_ids) < len(one[0])
            assert answer.token_ids == one[0][: len(answer.token_ids)]
        else:
            assert_equal([answer], [one])
    assert len(gone) == 1
    assert drafter.behind > 10


@SEEDED
def test_requests_are_preempted_between_rounds(
    twins: Target, head: Path, tiny_model: Path, work: tuple[list[GenerationRequest], list[Expected]]
) -> None:
    requests, expected = work
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    with served(twins, drafter, config=replace(CONFIG, num_pages=14)) as (runner, _, _, _):
        assert_equal(runner.run(requests), expected)
        assert runner.loop.state().preemptions > 0
    assert drafter.rounds > 0.3 * drafter.asked > 5


@SEEDED
def test_proposers_leave_while_a_round_is_under_way_and_may_come_back(
    twins: Target, head: Path, tiny_model: Path, work: tuple[list[GenerationRequest], list[Expected]]
) -> None:
    requests, expected = work
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    with served(twins, drafter) as (runner, link, host, attachment):

        def leave() -> None:
            link.drop(attachment, UnavailableError("they leave"))

        thread = threading.Thread(target=leave)
        drafter.at_first = lambda _: thread.start()
        assert_equal(runner.run(requests), expected)
        thread.join()
        behind = drafter.behind
        attach_host(link, host, device="cpu:0", max_step_rows=100)
        again = [replace(one, key=RequestKey(1, i)) for i, one in enumerate(requests)]
        assert_equal(runner.run(again), expected)
    assert drafter.behind - behind > 10
