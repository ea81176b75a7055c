from __future__ import annotations

from random import Random

import pytest
import torch

from draft_service.proposers.base import (
    DraftRequest,
    Opening,
    Proposer,
    ProposerOptions,
    SessionRefusedError,
    Target,
)
from draft_service.proposers.hybrid.hybrid import HybridConfig, HybridProposer, create
from draft_service.proposers.ngram.ngram import NgramConfig, NgramProposer
from draft_service.proposers.registry import ProposerSpec, load_proposers
from draft_service.proposers.suffix.suffix import SuffixConfig, SuffixProposer
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from slipstream_kernels.token_tree import TokenTree

TARGET = Target(1000, "", 4096)
OPENING = Opening([1, 2, 3], 3)


class Scripted(Proposer):
    """Knows the text and is right about each next token with a probability that depends on where it is."""

    def __init__(self, name, text, skill, claim=None, *, nodes=6, seed=0) -> None:
        self.name, self.max_nodes, self.max_depth = name, nodes, nodes - 1
        self.text, self.skill, self.claim = text, skill, claim
        self.draw = Random(seed)
        self.at: dict[int, int] = {}

    def open(self, session, opening) -> None:
        self.at[session] = len(opening.token_ids)

    def commit(self, session, token_ids) -> None:
        self.at[session] += len(token_ids)

    def close(self, session) -> None:
        del self.at[session]

    def propose(self, requests):
        trees = []
        for request in requests:
            at = self.at[request.session]
            right = self.skill(at)
            tokens = [
                token if self.draw.random() < right else 900 + self.draw.randrange(50)
                for token in self.text[at : at + min(request.max_nodes - 1, request.max_depth)]
            ]
            probs = None if self.claim is None else tuple(self.claim * (i + 1) for i in range(len(tokens)))
            trees.append(TokenTree(tuple(tokens), tuple(range(-1, len(tokens) - 1)), probs))
        return trees


class Faulty(Scripted):
    """Drafts what `fault` makes of its requests."""

    def __init__(self, fault) -> None:
        super().__init__("faulty", list(range(100, 200)), lambda at: 1.0)
        self.fault = fault
        self.asked = 0

    def propose(self, requests):
        self.asked += 1
        return self.fault(requests)


def hybrid_of(*members: Proposer, **config) -> HybridProposer:
    hybrid = HybridProposer("hybrid", HybridConfig(**config))
    hybrid.join({member.name: member for member in members})
    for proposer in (*members, hybrid):
        proposer.bind(TARGET)
    return hybrid


def tokens_a_step(proposer: Proposer, text: list[int], nodes: int) -> float:
    """Acceptance length over a text of which the first token is the prompt."""
    proposer.bind(TARGET)
    proposer.open(1, Opening(text[:1], 1))
    at, steps = 1, 0
    while at < len(text):
        (tree,) = proposer.propose([DraftRequest(1, nodes, 8)])
        steps += 1
        decided = text[at : at + 1]
        if tree is not None:
            tree.validate(vocab_size=1000, max_nodes=nodes - 1, max_depth=8)
            truth = [*text[at:], *[0] * 10]
            _, decided = tree.walk(truth[0], [truth[depth] for depth in tree.depths])
        proposer.commit(1, list(decided[: len(text) - at]))
        at += len(decided)
    proposer.close(1)
    return (len(text) - 1) / steps


@pytest.mark.parametrize("stream", ["first is better", "second is better", "they take turns", "phrases"])
def test_at_least_as_good_as_the_best_member(stream) -> None:
    draw = Random(3)
    text = [draw.randrange(800) for _ in range(6000)]
    good, bad = 0.9, 0.3
    turns = {
        "first is better": lambda at: good,
        "second is better": lambda at: bad,
        "they take turns": lambda at: good if at // 150 % 2 else bad,
        "phrases": lambda at: good if (at * 7919 // 40) % 3 else bad,
    }[stream]

    def members() -> list[Proposer]:
        return [
            Scripted("first", text, turns, claim=-0.01, seed=1),
            Scripted("second", text, lambda at: good + bad - turns(at), seed=2),
        ]

    alone = [tokens_a_step(member, text, 6) for member in members()]
    together = tokens_a_step(hybrid_of(*members(), max_nodes=6), text, 6)
    assert together >= 0.98 * max(alone)
    if stream in ("they take turns", "phrases"):
        assert together > 1.1 * max(alone)


def test_text_that_repeats_itself_and_past_responses_together() -> None:
    draw = Random(5)
    said = [draw.randrange(800) for _ in range(300)]
    fresh = [draw.randrange(800) for _ in range(60)]
    text = [1, *said[:150], *fresh, *said[150:], *fresh, *said[40:90]]

    def suffix() -> SuffixProposer:
        proposer = SuffixProposer("suffix", SuffixConfig())
        proposer.open(7, Opening([1], 1))
        proposer.commit(7, said)
        proposer.close(7)
        while proposer.advance():
            pass
        return proposer

    def ngram() -> NgramProposer:
        return NgramProposer("ngram", NgramConfig())

    alone = [tokens_a_step(member, text, 9) for member in (suffix(), ngram())]
    assert tokens_a_step(hybrid_of(suffix(), ngram()), text, 9) >= 0.98 * max(alone)


class Slow(Scripted):
    """Takes seconds, on a clock that only it moves, and counts what it is asked."""

    def __init__(self, name, text, skill, seconds) -> None:
        super().__init__(name, text, skill)
        self.seconds, self.now, self.asked = seconds, 0.0, 0

    def propose(self, requests):
        self.asked += 1
        self.now += self.seconds
        return super().propose(requests)


@pytest.mark.parametrize(("seconds", "often"), [(0.02, True), (0.005, False)])
def test_a_member_that_would_make_all_late_is_left_out(seconds, often) -> None:
    text = list(range(100, 400))
    slow = Slow("slow", text, lambda at: 0.5, 0.01)
    quick = Scripted("quick", text, lambda at: 1.0, seed=1)
    hybrid = HybridProposer("hybrid", HybridConfig(), clock=lambda: slow.now)
    hybrid.join({member.name: member for member in (slow, quick)})
    for proposer in (slow, quick, hybrid):
        proposer.bind(TARGET)
    hybrid.open(1, Opening(text[:1], 1))
    for at in range(1, 101):
        (tree,) = hybrid.propose([DraftRequest(1, 12, 8, seconds)])
        assert tree is not None and "quick" in tree.sources
        hybrid.commit(1, text[at : at + 1])
    assert slow.asked == 100 if often else 1 <= slow.asked < 10


def test_nodes_say_where_they_come_from() -> None:
    text = list(range(100, 200))
    hybrid = hybrid_of(
        Scripted("sure", text, lambda at: 1.0, claim=-0.1), Scripted("unsure", text, lambda at: 0.0, claim=-1.0)
    )
    hybrid.open(1, OPENING)
    (tree,) = hybrid.propose([DraftRequest(1, 8, 4)])
    assert tree is not None and tree.sources is not None
    right = tree.walk(103, [text[3 + depth] for depth in tree.depths])[0]
    assert [tree.sources[node] for node in right] == ["sure"] * 4
    assert set(tree.sources) == {"sure", "unsure"}
    assert len(tree) == 7


def _raise(requests):
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    "fault",
    [
        _raise,
        lambda requests: [],
        lambda requests: ["tree"] * len(requests),
        lambda requests: [TokenTree((1, 2), (0, -1))] * len(requests),
        lambda requests: [TokenTree((5000,), (-1,))] * len(requests),
        lambda requests: [TokenTree.chain(range(60))] * len(requests),
        lambda requests: [TokenTree((1,), (-1,), (float("nan"),))] * len(requests),
        lambda requests: [TokenTree((1,), ("x",))] * len(requests),
    ],
)
def test_a_member_that_fails_is_left_out_of_the_session(fault) -> None:
    faulty, good = Faulty(fault), Scripted("good", list(range(100, 200)), lambda at: 1.0)
    hybrid = hybrid_of(faulty, good)
    for session in (1, 2):
        hybrid.open(session, OPENING)
    requests = [DraftRequest(session, 5, 4) for session in (1, 2)]
    expected = [TokenTree.chain((103, 104, 105, 106)).token_ids] * 2
    assert [tree.token_ids for tree in hybrid.propose(requests)] == expected
    asked = faulty.asked
    assert [tree.token_ids for tree in hybrid.propose(requests)] == expected
    assert faulty.asked == asked and not faulty.at, "its sessions are closed"
    hybrid.close(1)
    hybrid.close(2)
    assert not good.at


def test_members_without_a_guess_and_no_members() -> None:
    silent = Faulty(lambda requests: [None for _ in requests])
    hybrid = hybrid_of(silent)
    hybrid.open(1, OPENING)
    assert hybrid.propose([DraftRequest(1, 8, 8)]) == [None]
    hybrid.commit(1, [5])
    silent.fault = _raise
    assert hybrid.propose([DraftRequest(1, 8, 8)]) == [None]
    hybrid.commit(1, [6])
    assert hybrid.propose([DraftRequest(1, 8, 8)]) == [None]


def test_sessions_and_targets_that_members_refuse() -> None:
    class Picky(Scripted):
        def bind(self, target) -> None:
            if target.vocab_size > 1000:
                raise FailedPreconditionError("too many tokens")

        def open(self, session, opening) -> None:
            if opening.tenant == "stranger":
                raise SessionRefusedError("unknown")
            super().open(session, opening)

    picky, good = (kind(kind.__name__, list(range(100, 200)), lambda at: 1.0) for kind in (Picky, Scripted))
    hybrid = hybrid_of(picky, good)
    hybrid.open(1, OPENING)
    hybrid.open(2, Opening([1], 1, tenant="stranger"))
    assert (set(picky.at), set(good.at)) == ({1}, {1, 2})
    lonely = hybrid_of(picky)
    with pytest.raises(SessionRefusedError, match="Picky: unknown"):
        lonely.open(3, Opening([1], 1, tenant="stranger"))
    hybrid.bind(Target(2000, "", 4096))
    hybrid.open(4, OPENING)
    assert set(picky.at) == {1}
    with pytest.raises(FailedPreconditionError):
        lonely.bind(Target(2000, "", 4096))


def test_features_are_told_apart() -> None:
    class Feeling(Scripted):
        def take_features(self, session, first_position, features) -> None:
            self.took = (session, first_position, features.tolist())

    low, high = (Feeling(name, [], lambda at: 1.0) for name in ("low", "high"))
    low.feature_boundaries, high.feature_boundaries = (1, 3), (5, 1)
    hybrid = hybrid_of(low, high, Scripted("blind", [], lambda at: 1.0))
    assert hybrid.feature_boundaries == (1, 3, 5)
    assert not hybrid.needs_states
    assert hybrid_of(low, high).needs_states
    hybrid.open(1, OPENING)
    hybrid.take_features(1, 0, torch.tensor([[10, 11, 30, 31, 50, 51]]))
    assert low.took == (1, 0, [[10, 11, 30, 31]])
    assert high.took == (1, 0, [[50, 51, 10, 11]])


def test_members_are_those_of_the_process() -> None:
    specs = [
        ProposerSpec.parse(spec) for spec in ("hybrid", "ngram", "some=draft_service.proposers.hybrid:create:ngram")
    ]
    hybrid, ngram, some = load_proposers(specs, threads=1)
    assert isinstance(hybrid, HybridProposer) and isinstance(some, HybridProposer)
    assert hybrid._members == some._members == {"ngram": ngram}
    assert (hybrid.max_nodes, hybrid.max_depth) == (9, 8)
    for wrong in (["hybrid"], ["hybrid:suffix", "ngram"], ["hybrid", "other=draft_service.proposers.hybrid:create"]):
        with pytest.raises(InvalidArgumentError, match="needs"):
            load_proposers([ProposerSpec.parse(spec) for spec in wrong], threads=1)


def test_a_hybrid_remembers_others_if_a_member_does() -> None:
    for specs, own in ((["ngram", "suffix:max_cached_requests=0"], True), (["ngram", "suffix"], False)):
        *members, hybrid = load_proposers([ProposerSpec.parse(spec) for spec in [*specs, "hybrid"]], threads=1)
        assert [member.own_text_only for member in members] == [True, own]
        assert hybrid.own_text_only is own


def test_the_argument() -> None:
    made = create(ProposerOptions("hybrid", "suffix+ngram:memory=500", max_nodes=12))
    assert made._wanted == ("suffix", "ngram")
    assert made.config == HybridConfig(max_nodes=12, memory=500.0)
    assert create(ProposerOptions("hybrid", "memory=500"))._wanted == ()
    for wrong in ("a+a", "a:b", "memory=1", "max_nodes=65"):
        with pytest.raises(InvalidArgumentError):
            create(ProposerOptions("hybrid", wrong))
