"""Who is blamed for a loss, what suspects may be sent along with, and what convicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.request import ChoiceRequest, Sampling
from gateway.replicas.quarantine import MEMORY_SECONDS, NO_LIMIT, Entry, Quarantine
from gateway.replicas.resumable_stream import ResumableStream
from slipstream.generation_types import SpeculationOptions

TRIAL_SECONDS = 10.0


def streams(count: int, *, sent_at: float = 0.0, begun: bool = True) -> list[ResumableStream]:
    """Streams as they are when a service has them."""
    made = [ResumableStream(ChoiceRequest([index], Sampling(seed=0)), lambda output: None) for index in range(count)]
    for stream in made:
        stream.sent_at, stream.begun = sent_at, begun
    return made


def suspected(quarantine: Quarantine, among: list[ResumableStream]) -> list[ResumableStream]:
    return [stream for stream in among if quarantine.priority(stream)[0] != -NO_LIMIT]


@pytest.mark.parametrize("yielded", [False, True])
def test_those_that_had_begun_without_a_token_are_blamed(yielded: bool) -> None:
    quarantine, (first, second, third, fourth) = Quarantine(TRIAL_SECONDS), streams(4)
    first.yielded, third.begun, fourth.begun = True, False, False
    quarantine.record_loss([first, second, third, fourth], yielded=yielded, now=1.0)
    assert suspected(quarantine, [first, second, third, fourth]) == [second]


def test_where_no_news_came_of_any_all_of_a_session_without_a_token_are_blamed() -> None:
    quarantine, all_of_them = Quarantine(TRIAL_SECONDS), streams(3, begun=False)
    quarantine.record_loss(all_of_them, yielded=True, now=1.0)
    assert not len(quarantine)
    quarantine.record_loss(all_of_them, yielded=False, now=2.0)
    assert suspected(quarantine, all_of_them) == all_of_them


def test_suspects_are_tried_with_an_eighth_of_their_group_and_then_alone() -> None:
    quarantine, group, (other, late) = Quarantine(TRIAL_SECONDS), streams(17), streams(2)
    quarantine.record_loss(group, yielded=True, now=1.0)
    assert quarantine.entry(group[0], [], 1.0) is Entry.OPEN
    assert quarantine.entry(group[1], [group[0]], 1.0) is Entry.OPEN
    assert quarantine.entry(group[2], group[:2], 1.0) is Entry.LATER
    assert quarantine.entry(late, group[:2], 1.0) is Entry.LATER, "nobody joins a trial that is full"
    assert quarantine.entry(late, [other] * 30, 1.0) is Entry.OPEN, "nor is anybody else limited"
    assert quarantine.entry(late, group[:2], TRIAL_SECONDS) is Entry.OPEN, "nor for longer than a trial"
    group[0].yielded = True
    assert quarantine.entry(group[2], group[:2], 1.0) is Entry.OPEN

    quarantine.record_loss(group[1:3], yielded=True, now=2.0)
    assert quarantine.entry(group[1], [group[2]], 2.0) is Entry.LATER
    assert quarantine.entry(group[1], [group[0]], 2.0) is Entry.OPEN, "beside one that has yielded"
    quarantine.record_loss([group[0], group[1]], yielded=True, now=3.0)
    assert quarantine.entry(group[1], [group[0]], 3.0) is Entry.ALONE
    assert quarantine.entry(group[1], [], 3.0) is Entry.OPEN
    assert quarantine.entry(group[0], [group[1]], 3.0) is Entry.LATER
    quarantine.clear(group[1], 3.0)
    assert quarantine.entry(group[0], [group[1]], 3.0) is Entry.OPEN


def test_without_trials_nobody_waits() -> None:
    quarantine, group = Quarantine(0.0), streams(8)
    quarantine.record_loss(group, yielded=True, now=1.0)
    assert quarantine.entry(group[0], group[1:], 1.0) is Entry.OPEN


def test_the_least_suspected_go_first_and_of_equals_the_one_that_ran_shortest() -> None:
    quarantine, group, (other,) = Quarantine(TRIAL_SECONDS), streams(16), streams(1)
    group[5].sent_at = 0.9
    quarantine.record_loss(group, yielded=True, now=1.0)
    quarantine.record_loss(group[:1], yielded=True, now=2.0)
    order = sorted([*group, other], key=quarantine.priority)
    assert (order[0], order[1], order[-1]) == (other, group[5], group[0])


def test_losses_beside_others_never_convict() -> None:
    quarantine, (killer, other) = Quarantine(TRIAL_SECONDS), streams(2)
    other.yielded = True
    for now in range(1, 20):
        killer.sent_at = now - 0.1
        quarantine.record_loss([killer, other], yielded=True, now=float(now))
        assert not quarantine.convicts(killer, float(now))


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
    quarantine, (killer,), innocents = Quarantine(TRIAL_SECONDS), streams(1), streams(1)
    innocents[0].yielded = True
    for at in others:
        quarantine.record_loss(innocents, yielded=True, now=at)
    now, verdicts = 900.0, []
    while not (verdicts and verdicts[-1]):
        killer.sent_at, now = now, now + seconds
        quarantine.record_loss([killer], yielded=False, now=now)
        verdicts.append(quarantine.convicts(killer, now))
        assert len(verdicts) < 20
    assert len(verdicts) == losses == quarantine.lone_losses(killer)


def test_one_loss_alone_less_convicts_where_others_have_got_on_meanwhile() -> None:
    quarantine, (killer, other) = Quarantine(TRIAL_SECONDS), streams(2)
    quarantine.record_loss([killer], yielded=False, now=0.1)
    other.yielded = True
    quarantine.progress(other, 5.0)
    killer.sent_at = 10.0
    quarantine.record_loss([killer], yielded=False, now=10.1)
    assert quarantine.convicts(killer, 10.1)


def test_a_token_clears() -> None:
    quarantine, (stream,) = Quarantine(TRIAL_SECONDS), streams(1)
    for now in (1.0, 2.0, 3.0):
        quarantine.record_loss([stream], yielded=False, now=now)
        stream.yielded = True
        quarantine.clear(stream, now)
        quarantine.recall([stream], now)
        stream.yielded = False
    assert not len(quarantine)
    assert not quarantine.convicts(stream, 3.0)


def test_one_that_was_given_up_without_a_token_is_remembered_for_a_while() -> None:
    quarantine, (first,), (second,), (stranger,) = Quarantine(TRIAL_SECONDS), *(streams(1) for _ in range(3))
    stranger.request = ChoiceRequest([7], Sampling(seed=0))
    quarantine.record_loss([first], yielded=False, now=0.1)
    quarantine.clear(first, 1.0)
    quarantine.recall([second, stranger], 1.0)
    assert suspected(quarantine, [second, stranger]) == [second]
    for now in (2.0, 3.0):
        second.sent_at = now
        quarantine.record_loss([second], yielded=False, now=now + 0.1)
    assert quarantine.convicts(second, 3.1)
    quarantine.clear(second, 3.1)
    quarantine.recall([first], 3.1 + MEMORY_SECONDS)
    assert not len(quarantine)


def test_the_same_request_as_a_convicted_one_is_known_and_others_of_its_prompt_are_tried() -> None:
    quarantine, (killer,), (again,), (other,) = Quarantine(TRIAL_SECONDS), *(streams(1) for _ in range(3))
    again.request = replace(again.request, sampling=replace(again.request.sampling, seed=77))
    other.request = replace(other.request, speculation=SpeculationOptions(proposer="another"))
    for now in (1.0, 2.0, 3.0):
        assert not quarantine.was_convicted([again], now)
        killer.sent_at = now
        quarantine.record_loss([killer], yielded=False, now=now + 0.1)
    assert quarantine.convicts(killer, 3.1)
    quarantine.clear(killer, 3.1)
    assert quarantine.was_convicted([again], 4.0)
    assert not quarantine.was_convicted([other], 4.0)
    quarantine.recall([other], 4.0)
    assert len(quarantine) == 1
    assert not quarantine.was_convicted([again], 3.1 + MEMORY_SECONDS)


def test_what_is_remembered_is_forgotten_in_time() -> None:
    quarantine, (suspect,) = Quarantine(TRIAL_SECONDS), streams(1)
    quarantine.record_loss([suspect], yielded=True, now=1.0)
    quarantine.clear(suspect, 2.0)
    assert len(quarantine._former) == 1
    quarantine.recall(streams(1), 2.0 + MEMORY_SECONDS)
    assert not quarantine._former
    assert not len(quarantine)
