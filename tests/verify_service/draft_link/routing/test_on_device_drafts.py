"""Proposers beside the target draft behind its passes: the same tokens, and the same trees as after the decisions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from draft_service.in_process import InProcessHost
from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import UnavailableError
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.proposer_host import Replies
from slipstream_kernels.draft_protocol.records import TreeReply
from support.answering_drafter import DEPTH, Drafter, write_drafter
from support.in_process_drafter import CONFIG, DEADLINE, served
from support.request_mix import Expected, assert_equal, some_requests
from support.verify_loop import Target, running_loop
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.request import GenerationRequest, RequestKey
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.draft_link.transports.in_process import attach_host
from verify_service.engine.launch_clock import LaunchClock
from verify_service.speculation.tree_sizing import TreeSizer

TOKENS = 24
SEEDED = pytest.mark.parametrize("work", [0.8], ids=["seeded"], indirect=True)


@pytest.fixture(scope="module")
def head(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("eagle") / "head")


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


def test_a_round_behind_a_pass_is_waited_for_no_longer_than_a_step_may(
    twins: Target, head: Path, tiny_model: Path, work, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[float] = []
    follow = InProcessHost.follow

    def followed(host: InProcessHost, values: Any, outcome: Any, seconds: float) -> Any:
        allowed.append(seconds)
        return follow(host, values, outcome, seconds)

    monkeypatch.setattr(InProcessHost, "follow", followed)
    run(twins, Drafter(head, tiny_model), work, 0, follows=True)
    assert len(allowed) >= 20
    assert all(0.0 < seconds <= DEADLINE for seconds in allowed)


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
    twins: Target, head: Path, tiny_model: Path, work, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[int] = []
    resolve = ScheduledRequest.resolve

    def resolved(item: ScheduledRequest, before: AcceptedPath) -> None:
        if isinstance(item.tree, DeviceTree):
            ahead.append(len(before.nodes))
        resolve(item, before)

    monkeypatch.setattr(ScheduledRequest, "resolve", resolved)
    drafter = Drafter(head, tiny_model)
    assert run(twins, drafter, work, 0, follows=True) > 20
    assert drafter.rounds > 0.5 * drafter.asked
    assert len(ahead) > 20 and set(ahead) > {0, 1}, "trees that nobody knew for roots that nobody knew"


@SEEDED
def test_a_launch_ahead_waits_for_requests_that_come(
    twins: Target, head: Path, tiny_model: Path, work, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, expected = work
    waited = threading.Event()

    def left(clock: LaunchClock) -> float:
        if len(runner.answers) > 1:
            return 0.0
        waited.set()
        return 60.0

    monkeypatch.setattr(LaunchClock, "left", property(left))
    with served(twins, Drafter(head, tiny_model)) as (runner, _, _, _):
        first = threading.Thread(target=runner.run, args=(requests[:1],))
        first.start()
        assert waited.wait(60.0)
        assert not runner.finished(requests[0].key)
        assert_equal(runner.run(requests[1:]), expected[1:])
        first.join()
        assert_equal([runner.answers[requests[0].key]], expected[:1])


@SEEDED
def test_requests_that_begin_beside_others_are_drafted_for_behind_the_step_under_way(
    twins: Target, head: Path, tiny_model: Path, work
) -> None:
    drafter = Drafter(head, tiny_model)
    assert run(twins, drafter, work, 0, follows=True) > 20
    assert drafter.caught_up > 0, "nobody asked for trees of their text before"


@SEEDED
def test_a_tree_that_a_step_has_from_its_promise_is_no_reply_as_well(
    twins: Target, head: Path, tiny_model: Path, work, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = Drafter(head, tiny_model)
    drafter.answers = texts_of(work)
    told: list[TreeReply | bytes] = []
    finish = InProcessHost.finish

    def count(host: InProcessHost, seconds: float, *, unread: bool = False) -> Replies | None:
        replies = finish(host, seconds, unread=unread)
        told.extend(replies or ())
        return replies

    monkeypatch.setattr(InProcessHost, "finish", count)
    with served(twins, drafter) as (runner, link, _, _):
        assert_equal(runner.run(work[0], 1), work[1])
        stats = link.state().drafters[0].stats
    assert stats.handed > 10
    assert stats.accepted > 20
    assert len(told) <= stats.hits - stats.handed


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
