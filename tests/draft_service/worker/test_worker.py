"""Whatever a third party's proposer hands back, the worker's thread lives on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from draft_service.proposers.base import DraftRequest, Opening, Proposer, Target
from draft_service.protocol.codec import AttachGrant, encode_replies
from draft_service.protocol.records import Open
from draft_service.worker.worker import Worker
from slipstream_kernels.draft_protocol.records import Nack, Reply, Stamp, TreeReply
from slipstream_kernels.token_tree import TokenTree


class Odd(Proposer):
    """Answers with whatever `answer` makes of the requests."""

    name, max_nodes, max_depth = "odd", 8, 4

    def __init__(self, answer: Callable[[Sequence[DraftRequest]], Any]) -> None:
        self.answer = answer

    def open(self, session: int, opening: Opening) -> None:
        return None

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        return None

    def close(self, session: int) -> None:
        return None

    def propose(self, requests: Sequence[DraftRequest]) -> Any:
        return self.answer(requests)


class Unlike:
    """Something that is neither a tree nor comparable with one."""

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __len__(self) -> int:
        raise RuntimeError("no length")


def good(tokens: Sequence[int] = (3, 4)) -> TokenTree:
    return TokenTree.chain(tokens)


def failing_midway(requests: Sequence[DraftRequest]) -> Iterator[TokenTree]:
    yield good()
    raise RuntimeError("as asked")


def replies_to(proposers: Sequence[Proposer], slots: int) -> list[Reply]:
    """The replies to one Open a slot, the last of which goes to the last proposer."""
    sent: SimpleQueue[list[Reply]] = SimpleQueue()
    worker = Worker(proposers)
    worker.start()
    worker.bind(Target(100, "", 64)).result(timeout=10)
    worker.attach(AttachGrant(1, slots), proposers, sent.put)
    last = len(proposers) - 1
    opens = [
        Open(Stamp(1, slot, 1, 2, 2), last if slot == slots - 1 else 0, Opening([1, 2], 2), 8, 4)
        for slot in range(slots)
    ]
    worker.put(opens)
    replies: list[Reply] = []
    while len(replies) < slots:
        replies.extend(sent.get(timeout=10))
    worker.stop()
    return sorted(replies, key=lambda reply: reply.stamp.slot)


@pytest.mark.parametrize(
    "answer",
    [
        lambda requests: None,
        lambda requests: 7,
        lambda requests: [],
        lambda requests: [good()] * (len(requests) + 1),
        lambda requests: ["tree" for _ in requests],
        lambda requests: [0 for _ in requests],
        lambda requests: [Unlike() for _ in requests],
        lambda requests: [((3, 4), (-1, 0)) for _ in requests],
        lambda requests: [TokenTree("ab", (-1, 0)) for _ in requests],
        lambda requests: [TokenTree((3.0, 4.0), (-1, 0)) for _ in requests],
        lambda requests: [TokenTree((3, 4), (-1, None)) for _ in requests],
        lambda requests: [TokenTree(None, None) for _ in requests],
        lambda requests: [TokenTree((3, 4), (-1, 0), "ab") for _ in requests],
        lambda requests: [TokenTree((3, 4), (-1, 0), (float("nan"), 0.0)) for _ in requests],
        failing_midway,
    ],
)
def test_what_is_no_tree_costs_its_requests_only(answer: Callable[[Sequence[DraftRequest]], Any]) -> None:
    healthy = Odd(lambda requests: [good() for _ in requests])
    *odd, last = replies_to([Odd(answer), healthy], 3)
    assert all(isinstance(reply, Nack) for reply in odd)
    assert last == TreeReply(Stamp(1, 2, 1, 2, 2), good())


@pytest.mark.parametrize(
    ("answer", "tree"),
    [
        (lambda requests: (good() for _ in requests), good()),
        (lambda requests: tuple(None for _ in requests), TokenTree((), ())),
        (
            lambda requests: [TokenTree(np.array([3, 4]), np.array([-1, 0]), np.float32([-0.5, -1])) for _ in requests],
            None,
        ),
        (
            lambda requests: [TokenTree(tuple(np.array([3, 4])), (-1, 0), tuple(np.float32([-0.5, -1])))],
            TokenTree((3, 4), (-1, 0), (-0.5, -1.0)),
        ),
    ],
)
def test_iterables_and_numbers_of_other_kinds(
    answer: Callable[[Sequence[DraftRequest]], Any], tree: TokenTree | None
) -> None:
    (reply,) = replies_to([Odd(answer)], 1)
    if tree is None:
        assert isinstance(reply, Nack)
    else:
        assert isinstance(reply, TreeReply)
        assert reply.tree == tree
        assert {type(value) for value in (*reply.tree.token_ids, *reply.tree.parents)} <= {int}


@pytest.mark.parametrize(
    ("sources", "places"),
    [
        (("odd", "other"), (0, 1)),
        (("nobody", "other"), (0, 1)),
        (("other",), ()),
        ((), ()),
        (None, ()),
        ((1, 2), (0, 0)),
    ],
)
def test_nodes_are_counted_for_offered_proposers(sources: Any, places: tuple[int, ...]) -> None:
    tree = TokenTree((3, 4), (-1, 0), None, sources)
    other = Odd(lambda requests: [tree for _ in requests])
    other.name = "other"
    first, _ = replies_to([Odd(lambda requests: [tree for _ in requests]), other], 2)
    assert isinstance(first, TreeReply)
    assert first.sources == places
    (sent,) = encode_replies([first]).replies
    assert tuple(sent.tree.sources) == places
