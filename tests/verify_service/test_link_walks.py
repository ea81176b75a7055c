"""Random walks of a link: drafters come, go, lag, refuse and forget; its books stay right and all drafters in step.

The test plays the loop and all drafters. A drafter follows the published rules and nothing else.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import UnavailableError
from slipstream_kernels.draft_protocol.records import Commit, Gap, Nack, Reply, Resume, Stamp, TrafficWeight, TreeReply
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import Committed, RequestOpening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link import rate_limiter
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import AttachRequest, Close, LinkFacts, Offer, Open

FACTS = LinkFacts("model", "tokenizer", 100, 4, 2, 1 << 17, 64)
SLOTS = 4


@dataclass(slots=True)
class _Known:
    stamp: Stamp
    tokens: list[int] | None


@dataclass(slots=True, eq=False)
class Drafter:
    """What a drafter knows of each slot; `tokens` is None from a Gap, or its own forgetting, to the next Open."""

    link: DraftLink
    attachment: Attachment
    slots: dict[int, _Known] = field(default_factory=dict)
    wants: dict[int, Stamp] = field(default_factory=dict)

    def read(self, messages: int) -> list[Reply]:
        """Take in so many messages; returns the Resumes that they call for."""
        replies: list[Reply] = []
        for _ in range(messages):
            for record in self.link.take(self.attachment):
                slot, known = record.stamp.slot, self.slots.get(record.stamp.slot)
                self.wants.pop(slot, None)
                match record:
                    case Open():
                        assert known is None or record.stamp.generation > known.stamp.generation
                        assert record.stamp.base_length == len(record.token_ids)
                        self.slots[slot] = _Known(record.stamp, list(record.token_ids))
                    case Commit():
                        assert known is not None, "a Commit for a slot that holds nothing"
                        assert known.stamp.generation == record.stamp.generation
                        if known.tokens is None:
                            continue
                        known.tokens += record.token_ids
                        known.stamp = record.stamp
                        assert len(known.tokens) == record.stamp.base_length, "a hole"
                    case Gap():
                        self.slots[slot] = _Known(record.stamp, None)
                        replies.append(Resume(record.stamp, 0))
                        continue
                    case Close():
                        self.slots.pop(slot, None)
                        continue
                if isinstance(record, Open | Commit) and record.max_nodes > 1:
                    self.wants[slot] = record.stamp
        return replies

    def trees(self) -> list[Reply]:
        wanted, self.wants = self.wants, {}
        return [TreeReply(stamp, TokenTree.chain([stamp.root_token])) for stamp in wanted.values()]

    def say(self, *replies: Reply) -> None:
        if replies:
            self.link.receive(self.attachment, replies, 100)


class Walk:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.link = DraftLink(FACTS, LinkConfig(transports=("grpc",), num_slots=SLOTS, deadline=0.0, outbox_limit=400))
        self.drafters: list[Drafter] = []
        self.running: dict[RequestKey, list[int]] = {}
        self.requests = 0

    def attach(self) -> None:
        share = self.draw.choice([None, 0.0, 0.3, 0.7])
        names = self.draw.sample(["p", "q"], self.draw.choice([1, 2]))
        offers = tuple(Offer(name, 8, 4) for name in names)
        request = AttachRequest(1, 1, "", offers, "", 0, ("grpc",), "d", "", 1, share)
        self.drafters.append(
            Drafter(self.link, self.link.start(self.link.attach(request, loopback=True).epoch, lambda: None))
        )

    def leave(self, drafter: Drafter) -> None:
        self.drafters.remove(drafter)
        self.link.drop(drafter.attachment, UnavailableError("left"))

    def begin(self) -> None:
        self.requests += 1
        key, length = RequestKey(1, self.requests), self.draw.randint(1, 60)
        tokens = [self.draw.randrange(100) for _ in range(length)]
        self.running[key] = tokens
        sampling = SamplingParams(seed=self.requests)
        proposer = self.draw.choice(["p", "q"])
        self.link.begin(RequestOpening(key, proposer, tuple(tokens), length, sampling, 0, "", "", 0))

    def end(self) -> None:
        key = self.draw.choice(list(self.running))
        del self.running[key]
        self.link.end(key, FinishReason.STOP)

    def step(self) -> None:
        """Collect trees, and commit one to four tokens of most requests."""
        keys = [key for key in self.running if self.draw.random() < 0.8]
        for key, tree in zip(keys, self.link.collect(keys), strict=True):
            assert tree is None or tree.token_ids == (self.running[key][-1],), "a tree for another state"
        commits = []
        for key in keys:
            tokens = tuple(self.draw.randrange(100) for _ in range(self.draw.randint(1, 4)))
            self.running[key] += tokens
            commits.append(Committed(key, tokens, len(self.running[key]), self.draw.choice([1, 8, 8]), 4))
        self.link.commit(commits)

    def drafter_acts(self, drafter: Drafter) -> None:
        resumes = drafter.read(self.draw.randint(0, 4))
        match self.draw.randrange(12):
            case 0:
                resumes.append(TrafficWeight(self.draw.choice([0.0, 0.25, 0.5, 1.0])))
            case 1 if known := [each for each in drafter.slots.values() if each.tokens is not None]:
                one = self.draw.choice(known)
                one.tokens = None
                drafter.wants.pop(one.stamp.slot, None)
                resumes.append(Resume(one.stamp, 0))
            case 2 if drafter.slots:
                resumes.append(Nack(self.draw.choice(list(drafter.slots.values())).stamp, "no"))
        drafter.say(*resumes, *drafter.trees())

    def check(self) -> None:
        """No slot is lost or held twice, and each belongs to a running request."""
        router = self.link._router
        assert set(router.running) == set(self.running)
        held: dict[int, set[int]] = {drafter.attachment.epoch: set() for drafter in self.drafters}
        for key, running in router.running.items():
            assert running.tokens == self.running[key]
            for ref in running.slots:
                assert ref.slot.key == key
                assert ref.slot.index not in held[ref.attachment.epoch]
                held[ref.attachment.epoch].add(ref.slot.index)
            assert len({ref.attachment.epoch for ref in running.slots}) == len(running.slots)
        for drafter in self.drafters:
            slots = drafter.attachment.slots
            assert {slot.index for slot in slots.taken()} == held[drafter.attachment.epoch]
            assert sorted(slots._free) == sorted(set(range(SLOTS)) - held[drafter.attachment.epoch])

    def settle(self) -> None:
        """Once all drafters keep up, each knows exactly the tokens of what it drafts for, and nothing waits."""
        for _ in range(40):
            for drafter in self.drafters:
                drafter.say(*drafter.read(1000), *drafter.trees())
            keys = list(self.running)
            self.link.collect(keys)
            for key in keys:
                self.running[key].append(7)
            self.link.commit([Committed(key, (7,), len(self.running[key]), 8, 4) for key in keys])
        for drafter in self.drafters:
            drafter.say(*drafter.read(1000), *drafter.trees())
        self.check()
        for key, running in self.link._router.running.items():
            for ref in running.slots:
                (drafter,) = [each for each in self.drafters if each.attachment is ref.attachment]
                assert ref.slot.session.in_sync
                assert drafter.slots[ref.slot.index].tokens == self.running[key]
                assert ref.slot.session.nacked or ref.slot.tree is not None
            assert running.next_slot is None, "it never moves"


def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares may change without end, while requests that are opened again wait for their turn often."""
    monkeypatch.setattr(rate_limiter, "BURST_PER_SLOT", 10**9)
    monkeypatch.setattr(rate_limiter, "OPENED_AT_ONCE", 300)


@pytest.mark.parametrize("seed", range(15))
def test_books_stay_right_and_all_keep_up_in_the_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generous(monkeypatch)
    walk = Walk(seed)
    for _ in range(300):
        act = walk.draw.random()
        if act < 0.03 and len(walk.drafters) < 4:
            walk.attach()
        elif act < 0.05 and walk.drafters:
            walk.leave(walk.draw.choice(walk.drafters))
        elif act < 0.12 and len(walk.running) < 7:
            walk.begin()
        elif act < 0.16 and walk.running:
            walk.end()
        elif act < 0.5:
            walk.step()
        elif walk.drafters:
            walk.drafter_acts(walk.draw.choice(walk.drafters))
        walk.check()
    walk.settle()
