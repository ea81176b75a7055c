"""What a drafter that dies costs the steps of its requests, by a clock that runs only while a step waits."""

from __future__ import annotations

from itertools import count

import pytest

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import UnavailableError
from slipstream_kernels.draft_protocol.proposer_host import IN_PROCESS
from slipstream_kernels.draft_protocol.records import Commit, Reply, TreeReply
from slipstream_kernels.token_tree import TokenTree
from support.played_link import FACTS, committed, opening
from verify_service.core.request import RequestKey
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.circuit_breaker import MAX_TIMEOUTS, SILENCE
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import AttachReply, AttachRequest, Offer
from verify_service.draft_link.send_queue import SendQueue

DEADLINE = 0.02
KEYS = [RequestKey(1, number) for number in range(8)]


class Drafter:
    """A transport whose drafter answers every commit at once while it `lives`; `clock` advances as a step waits."""

    name = IN_PROCESS
    polled = True
    position = 0

    def __init__(self, clock: list[float], *, answers: int = len(KEYS)) -> None:
        self.clock = clock
        self.lives = True
        self.answers = answers
        self.replies: list[Reply] = []
        self.link: DraftLink | None = None
        self.calls: list[str] = []

    def send(self, outbox: SendQueue) -> None:
        while records := outbox.take():
            wanted = [record for record in records if isinstance(record, Commit) and record.max_nodes > 1]
            if self.lives:
                self.replies += [TreeReply(record.stamp, TokenTree((7,), (-1,))) for record in wanted[: self.answers]]

    def yield_gil(self) -> None:
        return None

    def receive(self) -> list[tuple[list[Reply], int]]:
        replies, self.replies = self.replies, []
        return [(replies, 100)] if replies else []

    def wait(self, seconds: float, position: int) -> None:
        self.clock[0] += seconds

    def close(self) -> None:
        self.calls.append("close")

    def release(self) -> None:
        self.calls.append("release")


def attached(link: DraftLink, drafter: Drafter) -> Attachment:
    drafter.link = link
    request = AttachRequest(1, 1, "", (Offer("p", 8, 4),), "", 0, (IN_PROCESS,), "d", "", 1)

    def connect(attachment: Attachment, reply: AttachReply) -> Drafter:
        return drafter

    return link.attach_here(request, connect)


class Steps:
    """A link whose requests all have begun, step by step."""

    def __init__(self, *drafters: Drafter, clock: list[float]) -> None:
        self.clock = clock
        self.link = DraftLink(FACTS, LinkConfig(deadline=DEADLINE), clock=lambda: clock[0])
        self.attachments = [attached(self.link, drafter) for drafter in drafters]
        self.lengths = count(4)
        self.keys = KEYS
        for key in KEYS:
            self.link.begin(opening(key))

    def step(self) -> tuple[int, float]:
        """How many trees it got, and how long it waited; every step takes a millisecond."""
        length, begun = next(self.lengths), self.clock[0]
        self.link.commit([committed(length, 10, key=key) for key in self.keys])
        trees = self.link.collect(self.keys)
        waited = self.clock[0] - begun
        self.clock[0] += 0.001
        return sum(tree is not None for tree in trees), waited

    def requests(self) -> list[int]:
        """Of each drafter, those included that it has yet to take over."""
        return [state.requests for state in self.link.state().drafters]


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.mark.parametrize("answers", [0, len(KEYS) // 2])
def test_a_dead_drafter_costs_one_deadline_before_anybody_knows(clock: list[float], answers: int) -> None:
    drafter = Drafter(clock)
    steps = Steps(drafter, clock=clock)
    assert [steps.step() for _ in range(5)] == [(len(KEYS), 0.0)] * 5
    drafter.answers = answers  # what it had sent as it died
    first = steps.step()
    drafter.lives = False
    assert first == (answers, pytest.approx(DEADLINE))
    assert [steps.step() for _ in range(100)] == [(0, 0.0)] * 100
    assert steps.link.state().waits == 1


def test_those_who_stand_by_are_waited_for_as_ever(clock: list[float]) -> None:
    standing_by, drafter = Drafter(clock), Drafter(clock)
    steps = Steps(standing_by, drafter, clock=clock)
    steps.step()
    drafter.lives = False
    assert [steps.step()[1] for _ in range(3)] == [pytest.approx(DEADLINE), 0.0, 0.0]
    steps.link.drop(steps.attachments[1], UnavailableError("it died"))
    for _ in range(3):
        steps.step()
    assert steps.step() == (len(KEYS), 0.0)
    standing_by.lives = False
    assert [steps.step()[1] for _ in range(3)] == [pytest.approx(DEADLINE), 0.0, 0.0]


def test_one_that_says_nothing_is_asked_for_a_while_and_hangs_after_a_second(clock: list[float]) -> None:
    drafter = Drafter(clock)
    steps = Steps(drafter, clock=clock)
    drafter.lives = False
    steps.step()
    until = clock[0] + MAX_TIMEOUTS * DEADLINE
    for _ in range(MAX_TIMEOUTS - 1):
        assert steps.link.expects(KEYS)
        steps.step()
    while clock[0] < until:
        steps.step()
    assert not steps.link.expects(KEYS) and not steps.link.paused()
    clock[0] += SILENCE
    assert steps.link.paused()
    drafter.lives = True
    steps.step()
    assert not steps.link.paused() and steps.link.expects(KEYS)
    assert steps.step() == (len(KEYS), 0.0)


def test_requests_of_one_that_hangs_go_to_another_until_it_is_heard(clock: list[float]) -> None:
    standing_by, drafter = Drafter(clock), Drafter(clock)
    steps = Steps(standing_by, drafter, clock=clock)
    assert (steps.step(), steps.requests()) == ((len(KEYS), 0.0), [0, len(KEYS)])
    drafter.lives = False
    for _ in range(2 * MAX_TIMEOUTS):
        steps.step()
    assert steps.requests() == [0, len(KEYS)], "it may be slow"
    clock[0] += SILENCE
    for _ in range(4):
        steps.step()
    assert [steps.step() for _ in range(20)] == [(len(KEYS), 0.0)] * 20
    assert steps.requests() == [len(KEYS), 1], "one is kept to hear it by"
    assert not steps.link.paused()
    steps.link.end(KEYS[0], FinishReason.STOP)
    steps.keys = KEYS[1:]
    steps.step()
    assert steps.requests() == [len(steps.keys), 1], "another one is kept"
    drafter.lives = True
    assert [steps.step() for _ in range(4)] == [(len(steps.keys), 0.0)] * 4
    assert steps.requests() == [0, len(steps.keys)]


def test_where_those_who_stand_by_hang_too_requests_stay_and_nobody_is_told(clock: list[float]) -> None:
    both = [Drafter(clock), Drafter(clock)]
    steps = Steps(*both, clock=clock)
    for drafter in both:
        drafter.lives = False
    for _ in range(2 * MAX_TIMEOUTS):
        steps.step()
    clock[0] += SILENCE
    assert [steps.step() for _ in range(3)] == [(0, 0.0)] * 3
    assert steps.requests() == [1, len(KEYS)]
    assert [state.catching_up for state in steps.link.state().drafters] == [1, 0]
    assert steps.link.state().waits == 1
    assert steps.link.paused()
    both[0].lives = True
    assert [steps.step() for _ in range(5)][3:] == [(len(KEYS), 0.0)] * 2
    assert steps.requests() == [len(KEYS), 1] and not steps.link.paused()


def test_requests_of_one_that_hangs_stay_where_nobody_else_offers_their_proposer(clock: list[float]) -> None:
    drafter = Drafter(clock)
    steps = Steps(drafter, clock=clock)
    drafter.lives = False
    for _ in range(2 * MAX_TIMEOUTS):
        steps.step()
    clock[0] += SILENCE
    steps.step()
    assert steps.requests() == [len(KEYS)]
    drafter.lives = True
    assert [steps.step() for _ in range(3)][1:] == [(len(KEYS), 0.0)] * 2


def test_one_miss_before_nobody_asks_anything_is_no_hang(clock: list[float]) -> None:
    drafter = Drafter(clock)
    steps = Steps(drafter, clock=clock)
    drafter.lives = False
    steps.step()
    clock[0] += 10 * SILENCE
    assert not steps.link.paused()


def test_memory_is_not_let_go_as_an_attachment_ends(clock: list[float]) -> None:
    drafter = Drafter(clock)
    steps = Steps(drafter, clock=clock)
    steps.link.drop(steps.attachments[0], UnavailableError("it died"))
    assert drafter.calls == ["close"]
