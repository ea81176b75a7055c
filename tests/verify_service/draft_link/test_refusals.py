"""What operators are told of proposers that do not draft."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.rpc.errors import FailedPreconditionError, SlipstreamError, UnauthenticatedError, UnavailableError
from verify_service.draft_link.records import AttachRequest, Offer, Unfit
from verify_service.draft_link.refusals import KEPT_SECONDS, MAX_SOURCES, Refusal, Refusals

REQUEST = AttachRequest(1, 1, "", (Offer("head", 8, 7),), "", 0, ("grpc",), "draft", "host:1", 7)


def refuse(refusals: Refusals, request: AttachRequest, error: SlipstreamError) -> None:
    with pytest.raises(type(error)), refusals.attempt(request):
        raise error


def test_the_last_attempt_of_a_draft_service_counts_for_a_while() -> None:
    now = [100.0]
    refusals = Refusals(lambda: now[0])
    refuse(refusals, REQUEST, FailedPreconditionError("vocab_size 7 differs"))
    refuse(refusals, REQUEST, FailedPreconditionError("vocab_size 8 differs"))
    assert refusals.known(()) == [Refusal("head", "vocab_size 8 differs", "draft", "host:1", 7)]
    now[0] += KEPT_SECONDS - 1.0
    assert refusals.known(())
    now[0] += 1.0
    assert refusals.known(()) == []


def test_an_attachment_ends_its_own_refusal_alone() -> None:
    refusals = Refusals()
    other = replace(REQUEST, address="host:2")
    for request in (REQUEST, other):
        refuse(refusals, request, FailedPreconditionError("no"))
    with refusals.attempt(REQUEST):
        pass
    assert [each.address for each in refusals.known(())] == ["host:2"]


def test_misfits_of_an_attached_draft_service_are_told_while_it_is() -> None:
    refusals = Refusals()
    partial = replace(REQUEST, unfit=(Unfit("other", "hidden\nsize " + "x" * 1000),))
    with refusals.attempt(partial):
        pass
    (told,) = refusals.known((partial,))
    assert (told.proposer, told.reason[:12], len(told.reason)) == ("other", "hidden?size ", 300)
    assert refusals.known(()) == []


@pytest.mark.parametrize("error", [UnauthenticatedError("wrong attach token"), UnavailableError("draining")])
def test_strangers_and_moments_are_not_told_of(error: SlipstreamError) -> None:
    refusals = Refusals()
    refuse(refusals, REQUEST, error)
    assert refusals.known(()) == []


def test_many_draft_services_take_a_bounded_place() -> None:
    refusals = Refusals()
    for port in range(2 * MAX_SOURCES):
        many = replace(REQUEST, address=f"host:{port}", offers=(Offer("head", 8, 7),) * 1000)
        refuse(refusals, many, FailedPreconditionError("no"))
    told = refusals.known(())
    assert {each.address for each in told} == {f"host:{port}" for port in range(MAX_SOURCES, 2 * MAX_SOURCES)}
    assert len(told) == 32 * MAX_SOURCES
