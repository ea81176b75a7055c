"""What is opened in the middle costs a step little, however often a drafter asks; the test plays loop and drafter."""

from __future__ import annotations

import pytest

from slipstream.rpc.errors import InvalidArgumentError
from slipstream_kernels.draft_protocol.records import Commit, Resume, TreeReply
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import Committed, RequestOpening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.rate_limiter import OPENED_AT_ONCE, OPENED_PER_STEP
from verify_service.draft_link.records import AttachRequest, Command, LinkFacts, Offer, Open

FACTS = LinkFacts("model", "tokenizer", 100, 4, 2, 1 << 17, 64)
LONG = OPENED_AT_ONCE // 2


def link_of() -> DraftLink:
    return DraftLink(FACTS, LinkConfig(transports=("grpc",)))


def attach(link: DraftLink) -> Attachment:
    request = AttachRequest(1, 1, "", (Offer("p", 8, 4),), "", 0, ("grpc",), "d", "", 1)
    return link.start(link.attach(request, loopback=True).epoch, lambda: None)


def opening(number: int, length: int) -> RequestOpening:
    tokens = (1,) * length
    return RequestOpening(RequestKey(1, number), "p", tokens, length, SamplingParams(seed=1), 0, "", "", 0)


def read(link: DraftLink, attachment: Attachment) -> list[Command]:
    """All records that wait."""
    records: list[Command] = []
    while batch := link.take(attachment):
        records += batch
    return records


def newest(records: list[Command]) -> dict[int, Command]:
    return {record.stamp.slot: record for record in records}


def step(link: DraftLink, count: int, length: int) -> None:
    """A step that leaves each of `count` requests `length` tokens."""
    link.commit([Committed(RequestKey(1, number), (2,), length, 8, 4) for number in range(count)])


def test_a_drafter_that_always_resumes_is_opened_as_steps_go_on_and_ends_as_a_flood() -> None:
    link = link_of()
    attachment = attach(link)
    link.begin(opening(0, 100))
    (opened,) = read(link, attachment)
    told = 0

    def resume_for_ever() -> None:
        nonlocal opened, told
        while True:
            link.receive(attachment, [Resume(opened.stamp, 0)], 100)
            for record in read(link, attachment):
                assert isinstance(record, Open)
                opened = record
                told += len(record.token_ids)
                assert told <= OPENED_AT_ONCE + 100

    with pytest.raises(InvalidArgumentError):
        resume_for_ever()


def test_resumed_requests_are_opened_a_few_a_step_with_all_their_tokens() -> None:
    link = link_of()
    attachment = attach(link)
    for number in range(4):
        link.begin(opening(number, LONG))
    stamps = [record.stamp for record in read(link, attachment)]
    link.receive(attachment, [Resume(stamp, 0) for stamp in stamps], 400)
    first = read(link, attachment)
    assert [type(record) for record in first] == [Open, Open]
    known, length = newest(first), LONG
    while len(known) < 4:
        length += 1
        step(link, 4, length)
        records = read(link, attachment)
        opens = [record for record in records if isinstance(record, Open)]
        assert len(opens) <= 1
        known.update({record.stamp.slot: record for record in opens})
        assert all(len(record.token_ids) == length == record.stamp.base_length for record in opens)
        assert {record.stamp.slot for record in records if isinstance(record, Commit)} == known.keys() - {
            record.stamp.slot for record in opens
        }
        assert length < LONG + 2 * OPENED_AT_ONCE // OPENED_PER_STEP
    assert link.state().gaps == 0


def test_a_service_that_attaches_is_opened_all_in_time() -> None:
    link = link_of()
    for number in range(4):
        link.begin(opening(number, LONG))
    attachment = attach(link)
    assert len(read(link, attachment)) == 2
    length, opened = LONG, 2
    while opened < 4:
        length += 1
        step(link, 4, length)
        opened += sum(isinstance(record, Open) for record in read(link, attachment))
        assert length < LONG + 2 * OPENED_AT_ONCE // OPENED_PER_STEP
    step(link, 4, length + 1)
    commits = read(link, attachment)
    assert [type(record) for record in commits] == [Commit] * 4
    for record in commits:
        link.receive(attachment, [TreeReply(record.stamp, TokenTree.chain([5]))], 100)
    assert link.collect([RequestKey(1, number) for number in range(4)]) == [TokenTree.chain([5])] * 4


def test_one_of_any_length_is_opened() -> None:
    link = link_of()
    attachment = attach(link)
    link.begin(opening(0, 2 * OPENED_AT_ONCE))
    for _ in range(2):
        (opened,) = read(link, attachment)
        link.receive(attachment, [Resume(opened.stamp, 0)], 100)
    for number in range(1, 3 * OPENED_AT_ONCE // OPENED_PER_STEP):
        step(link, 1, 2 * OPENED_AT_ONCE + number)
        if records := read(link, attachment):
            break
    assert [len(record.token_ids) for record in records if isinstance(record, Open)] == [2 * OPENED_AT_ONCE + number]
