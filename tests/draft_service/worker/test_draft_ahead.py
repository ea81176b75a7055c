"""Drafting ahead: outcomes by probability, forks that equal sessions with the same tokens, and nothing left behind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest

from draft_service.proposers.base import DraftRequest, Opening, Proposer, Sampling
from draft_service.proposers.draft_model.cpu import DraftModelConfig, DraftModelProposer
from draft_service.proposers.ngram.ngram import NgramConfig, NgramProposer
from draft_service.proposers.suffix.suffix import SuffixProposer
from draft_service.protocol.records import Close, Open
from draft_service.worker.draft_ahead import AheadDrafter, path_scores
from draft_service.worker.session_table import SessionTable
from slipstream_kernels.draft_protocol.records import Commit, Stamp, TreeReply
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from support.models import make_tiny_model

SAMPLINGS = [Sampling(temperature=0), Sampling(temperature=0.9, seed=3, presence_penalty=0.5)]


class Counting(Proposer):
    """After token t come t + 1, t + 2 and t + 3, the first with probability 0.7. Uses the interface's defaults."""

    name, max_nodes, max_depth = "counting", 4, 3

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.fails = False

    def open(self, session: int, opening: Opening) -> None:
        assert session not in self.texts
        self.texts[session] = list(opening.token_ids)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self.texts[session].extend(token_ids)

    def close(self, session: int) -> None:
        del self.texts[session]

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        if self.fails:
            raise RuntimeError("as asked")
        return [self.tree(self.texts[request.session][-1], request.max_depth) for request in requests]

    @staticmethod
    def tree(last: int, depth: int) -> TokenTree:
        if depth == 1:
            return TokenTree((last + 1, last + 2, last + 3), (-1, -1, -1), tuple(np.log([0.7, 0.2, 0.1]).tolist()))
        chain = range(1, depth + 1)
        return TokenTree(
            tuple(last + i for i in chain), tuple(range(-1, depth - 1)), tuple(i * np.log(0.7) for i in chain)
        )


class Ahead:
    """One slot drafted ahead, as the worker would."""

    def __init__(self, proposer: Proposer, tokens: Sequence[int], sampling: Sampling, *, waits: bool = False) -> None:
        self.proposer = proposer
        self.tokens = list(tokens)
        self.current = True
        self.table = SessionTable(1, 2, [proposer], count(1), max_ahead=4, waits=waits)
        self.table.apply(Open(self.stamp(), 0, Opening(list(tokens), 2, sampling), 1, 0))

    def stamp(self) -> Stamp:
        return Stamp(1, 0, 1, len(self.tokens), self.tokens[-1])

    def commit(self, *tokens: int, tree_id: int = 0) -> object:
        self.tokens.extend(tokens)
        return self.table.apply(Commit(self.stamp(), list(tokens), 6, 3, tree_id=tree_id))

    def prepare(self) -> list[TreeReply]:
        drafter = AheadDrafter(
            self.table.numbers, lambda by, wanted: list(by.propose(wanted)), lambda _: self.current, lambda: None
        )
        replies = [reply for group in drafter.prepare(self.table.slots) for reply in group]
        assert all(isinstance(reply, TreeReply) for reply in replies)
        return [reply for reply in replies if isinstance(reply, TreeReply)]


def test_the_likeliest_ends_get_trees_and_the_one_that_came_is_gone_on_with() -> None:
    proposer = Counting()
    ahead = Ahead(proposer, [1, 2, 3], SAMPLINGS[0])
    assert ahead.commit(10) is None
    plain = ahead.prepare()
    assert [(reply.stamp.root_token, reply.parent) for reply in plain] == [(11, (0, -1)), (12, (0, -1)), (13, (0, -1))]
    assert plain[0].tree == Counting.tree(11, 3)
    ahead.commit(11, tree_id=plain[0].tree_id)
    assert list(proposer.texts.values()) == [[1, 2, 3, 10, 11]]
    outcomes = ahead.prepare()
    # 0.7^3 * 0.7 after the whole path; else the second guess after a node, the sooner the likelier.
    assert [(reply.stamp.root_token, reply.parent) for reply in outcomes] == [
        (15, (plain[0].tree_id, 2)),
        (13, (plain[0].tree_id, -1)),
        (14, (plain[0].tree_id, 0)),
        (14, (plain[0].tree_id, -1)),
    ]
    assert [reply.stamp.base_length for reply in outcomes] == [9, 6, 7, 6]
    ahead.table.apply(Close(ahead.stamp()))
    assert proposer.texts == {}


def test_a_tree_that_verify_has_not_taken_is_sent_again_where_it_waits() -> None:
    ahead = Ahead(Counting(), [1, 2, 3], SAMPLINGS[0], waits=True)
    ahead.commit(10)
    assert ahead.table.slots[0].wants_tree, "as in lockstep"
    ahead.table.slots[0].wants_tree = False
    made = ahead.prepare()
    answer = ahead.commit(12)
    assert answer == TreeReply(ahead.stamp(), made[1].tree, tree_id=made[1].tree_id)


def test_ends_that_never_come_get_no_trees_any_more() -> None:
    ahead = Ahead(Counting(), [1, 2, 3], SAMPLINGS[0])
    ahead.commit(10)
    made = ahead.prepare()
    for _ in range(60):
        likeliest = made[0]
        state = ahead.table.slots[0].ahead
        assert likeliest.parent is not None
        assert state is not None
        path = [state.tree.token_ids[node] for node in state.tree.path(likeliest.parent[1])]
        ahead.commit(*path, likeliest.stamp.root_token, tree_id=likeliest.tree_id)
        made = ahead.prepare()
    assert len(made) == 1, "the longest path and what follows it is what has always come"
    assert made[0].parent is not None
    assert made[0].parent[1] == 2


def test_what_nobody_foresaw_is_drafted_anew() -> None:
    proposer = Counting()
    ahead = Ahead(proposer, [1, 2, 3], SAMPLINGS[0])
    ahead.commit(10)
    ahead.prepare()
    ahead.commit(50)
    assert list(proposer.texts.values()) == [[1, 2, 3, 10, 50]]
    assert ahead.prepare()[0].stamp.root_token == 51


def test_nothing_is_sent_for_a_state_that_has_passed() -> None:
    proposer = Counting()
    ahead = Ahead(proposer, [1, 2, 3], SAMPLINGS[0])
    ahead.commit(10)
    ahead.current = False
    assert ahead.prepare() == []
    assert len(proposer.texts) == 1


def test_a_proposer_that_fails_ahead_keeps_its_requests(caplog: pytest.LogCaptureFixture) -> None:
    proposer = Counting()
    ahead = Ahead(proposer, [1, 2, 3], SAMPLINGS[0])
    ahead.commit(10)
    proposer.fails = True
    assert ahead.prepare() == []
    assert "failed to draft ahead" in caplog.text
    ahead.commit(11)
    assert ahead.table.slots[0].wants_tree
    assert list(proposer.texts.values()) == [[1, 2, 3, 10, 11]]


def test_paths_without_probabilities_are_ranked() -> None:
    scores = path_scores(TokenTree((1, 2, 3, 4), (-1, -1, 0, 0)))
    assert np.exp(scores).tolist() == pytest.approx([0.7, 0.3, 0.49, 0.21])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder = make_tiny_model(tmp_path_factory.mktemp("ahead"), seed=1, max_context=96)
    return CausalLM.load(folder, threads=1)


def draft_model(model: CausalLM) -> DraftModelProposer:
    return DraftModelProposer("draft-model", model, DraftModelConfig(top_k=2, max_nodes=6, page_size=4), "tokenizer")


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ["draft-model", "ngram"])
def test_trees_ahead_are_those_that_a_session_with_these_tokens_gets(
    model: CausalLM, kind: str, sampling: Sampling
) -> None:
    make = (lambda: draft_model(model)) if kind == "draft-model" else (lambda: NgramProposer("n", NgramConfig()))
    ahead, fresh = Ahead(make(), [5, 6, 7, 8, 9, 5, 6, 7, 8], sampling), make()
    ahead.commit(9)
    checked = 0
    for step in range(8):
        replies = [reply for reply in ahead.prepare() if reply.parent is not None]
        for reply in replies:
            tree, (_, node) = ahead.table.slots[0].ahead, reply.parent
            assert tree is not None
            path = [tree.tree.token_ids[each] for each in tree.tree.path(node)]
            text = [*ahead.tokens, *path, reply.stamp.root_token]
            assert len(text) == reply.stamp.base_length
            number = 1000 + checked
            fresh.open(number, Opening(text, 2, sampling))
            (expected,) = fresh.propose([DraftRequest(number, 6, 3)])
            fresh.close(number)
            assert expected is not None
            assert (reply.tree.token_ids, reply.tree.parents) == (expected.token_ids, expected.parents)
            checked += 1
        if not replies:
            break
        chosen = replies[step % len(replies)]
        state = ahead.table.slots[0].ahead
        assert state is not None
        tokens = next(key for key, each in state.cache.items() if each.tree_id == chosen.tree_id)
        ahead.commit(*tokens, tree_id=chosen.tree_id)
    assert checked > 4


def test_forks_of_a_draft_model_give_their_pages_back(model: CausalLM) -> None:
    proposer = draft_model(model)
    free = proposer._cache._pool.free_count
    ahead = Ahead(proposer, range(5, 14), SAMPLINGS[1])
    for token in range(20, 30):
        ahead.commit(token)
        ahead.prepare()
    ahead.table.close_all()
    assert proposer._cache._pool.free_count == free
    assert not proposer._cache._sessions


def test_who_learns_from_closed_sessions_is_not_forked() -> None:
    assert not SuffixProposer.drafts_ahead
