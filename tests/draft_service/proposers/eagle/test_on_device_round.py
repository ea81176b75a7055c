"""What a round behind a pass has made, and who else is asked for the rest."""

from __future__ import annotations

import pytest
import torch

from draft_service.proposers.base import DraftRequest, Sampling
from draft_service.proposers.eagle.on_device_round import ChainedDraftFuture, Laid, OnDeviceRound
from draft_service.proposers.eagle.paged_sessions import PagedSession
from slipstream_kernels.device_tree import DeviceTree, most_rows
from slipstream_kernels.token_tree import TokenTree


class Round:
    """A ticket, or a `DraftFuture`, that is done when told so."""

    def __init__(self, *trees: TokenTree) -> None:
        self.made = list(trees)
        self.done = False

    def wait(self, seconds: float) -> bool:
        return self.done

    def trees(self) -> list[TokenTree]:
        assert self.done
        return self.made

    result = trees

    def read(self, row: int) -> TokenTree:
        return self.trees()[row]


def session(number: int) -> PagedSession:
    """Of ten tokens, all but the last of which are computed."""
    return PagedSession(number, list(range(10)), Sampling(temperature=0.0), line=0, begin=0, length=9)


def test_requests_that_came_later_are_begun_with_and_waited_for_too() -> None:
    sessions = [session(1), session(2)]
    laid = {one: Laid(one.commits, one.length, 4, 3, 3) for one in sessions}
    ticket, own = Round(TokenTree.chain((1, 2, 3)), TokenTree.chain((4, 5, 6))), Round(TokenTree.chain((7,)))
    requests = [DraftRequest(2, 3, 9), DraftRequest(3, 8, 8), DraftRequest(1, 9, 1)]
    begun: list[list[int]] = []

    def others(left):
        begun.append([request.session for request in left])
        return own

    wanted = {sessions[1]: requests[0], sessions[0]: requests[2]}
    answer = ChainedDraftFuture(OnDeviceRound(ticket, laid), wanted, requests, others)
    assert answer.device_trees() is None
    assert not answer.wait(0.0) and not begun
    ticket.done = True
    assert not answer.wait(0.0)
    own.done = True
    assert answer.wait(0.0)
    assert [tree.token_ids for tree in answer.result()] == [(4, 5), (7,), (1,)]
    assert begun == [[3]]


@pytest.mark.parametrize(("nodes", "depth", "there"), [(9, 9, True), (4, 3, True), (3, 3, False), (4, 2, False)])
def test_trees_may_be_handed_on_where_they_keep_to_the_limits_whatever_they_are(
    nodes: int, depth: int, *, there: bool
) -> None:
    sessions = [session(1), session(2)]
    ticket = Round(TokenTree.chain((1, 2, 3)), TokenTree.chain((4, 5, 6)))
    followed = OnDeviceRound(ticket, {one: Laid(one.commits, one.length, 4, 3, 3) for one in sessions})
    requests = [DraftRequest(2, 9, 9), DraftRequest(1, nodes, depth)]
    wanted = {sessions[0]: requests[1], sessions[1]: requests[0]}
    answer = ChainedDraftFuture(followed, wanted, requests, lambda _: pytest.fail("there are no others"))
    trees = answer.device_trees()
    if not there:
        assert trees is None
        return
    assert trees is not None
    assert all(isinstance(tree, DeviceTree) and most_rows(tree) == (3, 3) for tree in trees)
    assert [tree.row for tree in trees if isinstance(tree, DeviceTree)] == [1, 0]
    ticket.done = True
    assert [tree.token_ids for tree in trees] == [(4, 5, 6), (1, 2, 3)]


@pytest.mark.parametrize(
    ("commits", "rows", "made"), [((2,), 2, True), ((2,), 1, False), ((1, 1), 2, False), ((5,), 5, False)]
)
def test_a_tree_is_for_what_the_pass_decided_alone(commits: tuple[int, ...], rows: int, *, made: bool) -> None:
    one = session(1)
    followed = OnDeviceRound(Round(), {one: Laid(one.commits, one.length, 4, 3, 3)})
    assert not followed.made_for(one)
    for count in commits:
        one.commit(range(count))
    one.add(torch.zeros(rows, 8))
    assert followed.made_for(one) == made
