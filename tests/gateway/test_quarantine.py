"""Who is blamed for a loss, what suspects may be sent along with, and what convicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.quarantine import MEMORY_SECONDS, NO_LIMIT, CrashSuspects, Entry
from gateway.request import ChoiceRequest, Sampling
from gateway.resumable_stream import ResumableStream
from slipstream.generation_types import SpeculationOptions

TRIAL_SECONDS = 10.0


def tickets(count: int, *, sent_at: float = 0.0, begun: bool = True) -> list[ResumableStream]:
    """Tickets as they are when a service has them."""
    made = [ResumableStream(ChoiceRequest([index], Sampling(seed=0)), lambda output: None) for index in range(count)]
    for ticket in made:
        ticket.sent_at, ticket.begun = sent_at, begun
    return made


def suspected(suspects: CrashSuspects, among: list[ResumableStream]) -> list[ResumableStream]:
    return [ticket for ticket in among if suspects.order(ticket)[0] != -NO_LIMIT]


@pytest.mark.parametrize("yielded", [False, True])
def test_those_that_had_begun_without_a_token_are_blamed(yielded: bool) -> None:
    suspects, (first, second, third, fourth) = CrashSuspects(TRIAL_SECONDS), tickets(4)
    first.yielded, third.begun, fourth.begun = True, False, False
    suspects.lost([first, second, third, fourth], yielded=yielded, now=1.0)
    assert suspected(suspects, [first, second, third, fourth]) == [second]


def test_where_no_news_came_of_any_all_of_a_session_without_a_token_are_blamed() -> None:
    suspects, all_of_them = CrashSuspects(TRIAL_SECONDS), tickets(3, begun=False)
    suspects.lost(all_of_them, yielded=True, now=1.0)
    assert not len(suspects)
    suspects.lost(all_of_them, yielded=False, now=2.0)
    assert suspected(suspects, all_of_them) == all_of_them


def test_suspects_are_tried_with_an_eighth_of_their_group_and_then_alone() -> None:
    suspects, group, (other, late) = CrashSuspects(TRIAL_SECONDS), tickets(17), tickets(2)
    suspects.lost(group, yielded=True, now=1.0)
    assert suspects.entry(group[0], [], 1.0) is Entry.OPEN
    assert suspects.entry(group[1], [group[0]], 1.0) is Entry.OPEN
    assert suspects.entry(group[2], group[:2], 1.0) is Entry.LATER
    assert suspects.entry(late, group[:2], 1.0) is Entry.LATER, "nobody joins a trial that is full"
    assert suspects.entry(late, [other] * 30, 1.0) is Entry.OPEN, "nor is anybody else limited"
    assert suspects.entry(late, group[:2], TRIAL_SECONDS) is Entry.OPEN, "nor for longer than a trial"
    group[0].yielded = True
    assert suspects.entry(group[2], group[:2], 1.0) is Entry.OPEN

    suspects.lost(group[1:3], yielded=True, now=2.0)
    assert suspects.entry(group[1], [group[2]], 2.0) is Entry.LATER
    assert suspects.entry(group[1], [group[0]], 2.0) is Entry.OPEN, "beside one that has yielded"
    suspects.lost([group[0], group[1]], yielded=True, now=3.0)
    assert suspects.entry(group[1], [group[0]], 3.0) is Entry.ALONE
    assert suspects.entry(group[1], [], 3.0) is Entry.OPEN
    assert suspects.entry(group[0], [group[1]], 3.0) is Entry.LATER
    suspects.clear(group[1], 3.0)
    assert suspects.entry(group[0], [group[1]], 3.0) is Entry.OPEN


def test_without_trials_nobody_waits() -> None:
    suspects, group = CrashSuspects(0.0), tickets(8)
    suspects.lost(group, yielded=True, now=1.0)
    assert suspects.entry(group[0], group[1:], 1.0) is Entry.OPEN


def test_the_least_suspected_go_first_and_of_equals_the_one_that_ran_shortest() -> None:
    suspects, group, (other,) = CrashSuspects(TRIAL_SECONDS), tickets(16), tickets(1)
    group[5].sent_at = 0.9
    suspects.lost(group, yielded=True, now=1.0)
    suspects.lost(group[:1], yielded=True, now=2.0)
    order = sorted([*group, other], key=suspects.order)
    assert (order[0], order[1], order[-1]) == (other, group[5], group[0])


def test_losses_beside_others_never_convict() -> None:
    suspects, (killer, other) = CrashSuspects(TRIAL_SECONDS), tickets(2)
    other.yielded = True
    for now in range(1, 20):
        killer.sent_at = now - 0.1
        suspects.lost([killer, other], yielded=True, now=float(now))
        assert not suspects.convicts(killer, float(now))


@pytest.mark.parametrize(
    ("others", "seconds", "losses"),
    [
        ([], 0.5, 3),  # it goes at once whenever this one runs, and never else
        ([], 30.0, 5),  # chance is the likelier, the longer it runs
        ([820.0, 840.0, 860.0, 880.0, 900.0], 0.5, 3),
        ([820.0, 840.0, 860.0, 880.0, 900.0], 5.0, 5),  # and the more often the service goes without it
    ],
)
def test_losses_alone_convict_when_chance_is_out_of_the_question(
    others: list[float], seconds: float, losses: int
) -> None:
    suspects, (killer,), innocents = CrashSuspects(TRIAL_SECONDS), tickets(1), tickets(1)
    innocents[0].yielded = True
    for at in others:
        suspects.lost(innocents, yielded=True, now=at)
    now, verdicts = 900.0, []
    while not (verdicts and verdicts[-1]):
        killer.sent_at, now = now, now + seconds
        suspects.lost([killer], yielded=False, now=now)
        verdicts.append(suspects.convicts(killer, now))
        assert len(verdicts) < 20
    assert len(verdicts) == losses == suspects.lone_losses(killer)


def test_one_loss_alone_less_convicts_where_others_have_got_on_meanwhile() -> None:
    suspects, (killer, other) = CrashSuspects(TRIAL_SECONDS), tickets(2)
    suspects.lost([killer], yielded=False, now=0.1)
    other.yielded = True
    suspects.progress(other, 5.0)
    killer.sent_at = 10.0
    suspects.lost([killer], yielded=False, now=10.1)
    assert suspects.convicts(killer, 10.1)


def test_a_token_clears() -> None:
    suspects, (ticket,) = CrashSuspects(TRIAL_SECONDS), tickets(1)
    for now in (1.0, 2.0, 3.0):
        suspects.lost([ticket], yielded=False, now=now)
        ticket.yielded = True
        suspects.clear(ticket, now)
        suspects.recall([ticket], now)
        ticket.yielded = False
    assert not len(suspects)
    assert not suspects.convicts(ticket, 3.0)


def test_one_that_was_given_up_without_a_token_is_remembered_for_a_while() -> None:
    suspects, (first,), (second,), (stranger,) = CrashSuspects(TRIAL_SECONDS), *(tickets(1) for _ in range(3))
    stranger.order = ChoiceRequest([7], Sampling(seed=0))
    suspects.lost([first], yielded=False, now=0.1)
    suspects.clear(first, 1.0)
    suspects.recall([second, stranger], 1.0)
    assert suspected(suspects, [second, stranger]) == [second]
    for now in (2.0, 3.0):
        second.sent_at = now
        suspects.lost([second], yielded=False, now=now + 0.1)
    assert suspects.convicts(second, 3.1)
    suspects.clear(second, 3.1)
    suspects.recall([first], 3.1 + MEMORY_SECONDS)
    assert not len(suspects)


def test_the_same_request_as_a_convicted_one_is_known_and_others_of_its_prompt_are_tried() -> None:
    suspects, (killer,), (again,), (other,) = CrashSuspects(TRIAL_SECONDS), *(tickets(1) for _ in range(3))
    again.order = replace(again.order, sampling=replace(again.order.sampling, seed=77))
    other.order = replace(other.order, speculation=SpeculationOptions(proposer="another"))
    for now in (1.0, 2.0, 3.0):
        assert not suspects.was_convicted([again], now)
        killer.sent_at = now
        suspects.lost([killer], yielded=False, now=now + 0.1)
    assert suspects.convicts(killer, 3.1)
    suspects.clear(killer, 3.1)
    assert suspects.was_convicted([again], 4.0)
    assert not suspects.was_convicted([other], 4.0)
    suspects.recall([other], 4.0)
    assert len(suspects) == 1
    assert not suspects.was_convicted([again], 3.1 + MEMORY_SECONDS)


def test_what_is_remembered_is_forgotten_in_time() -> None:
    suspects, (suspect,) = CrashSuspects(TRIAL_SECONDS), tickets(1)
    suspects.lost([suspect], yielded=True, now=1.0)
    suspects.clear(suspect, 2.0)
    assert len(suspects._former) == 1
    suspects.recall(tickets(1), 2.0 + MEMORY_SECONDS)
    assert not suspects._former
    assert not len(suspects)
