"""What is read from a message's bytes is what a parser reads, in order; all else is left to the parser."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import draft_pb2, tree_pb2
from slipstream_kernels.draft_protocol.records import Reply, Stamp, TreeReply
from slipstream_kernels.draft_protocol.tree_wire import MOST_BYTES, TreeReader
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.draft_link.codec import decode_replies

SLOTS = 8
LARGEST = 2**31 - 1
READER = TreeReader()


def number(draw: random.Random, bits: int) -> int:
    """Of any length up to so many bits."""
    return draw.getrandbits(draw.randint(0, bits)) if bits else 0


def plain_tree(draw: random.Random) -> tree_pb2.TokenTree:
    """A tree in order, of any shape."""
    count = draw.choice((0, 1, 2, 5, 12, MAX_ROWS - 1))
    return tree_pb2.TokenTree(
        stamp=tree_pb2.Stamp(
            epoch=number(draw, 63),
            slot=number(draw, 32),
            generation=number(draw, 63),
            base_length=number(draw, 32),
            root_token=number(draw, 32),
        ),
        token_ids=[number(draw, 31) for _ in range(count)],
        parents=[draw.randint(-1, node - 1) for node in range(count)],
        log_probs=[draw.uniform(-9.0, 0.0) for _ in range(count)] if draw.random() < 0.5 else [],
    )


def plain_message(draw: random.Random) -> bytes:
    return message_of(*(plain_tree(draw) for _ in range(draw.randint(0, 4))))


def message_of(*trees: tree_pb2.TokenTree) -> bytes:
    return draft_pb2.ExchangeRequest(replies=[draft_pb2.DraftReply(tree=tree) for tree in trees]).SerializeToString()


def read(data: bytes) -> list[Reply] | None:
    found = READER.read(data)
    return None if found is None else [TreeReply(Stamp(*stamp), tree) for stamp, tree in found]


def agree(data: bytes) -> None:
    """The reader says what the parser says, or nothing; what it says is in order."""
    found = read(data)
    if found is None:
        return
    assert found == decode_replies(data, SLOTS)
    for reply in found:
        assert isinstance(reply, TreeReply)
        tree = reply.tree
        same = TokenTree(tree.token_ids, tree.parents, tree.log_probs)
        same.validate(vocab_size=LARGEST + 1, max_nodes=MAX_ROWS - 1, max_depth=MAX_ROWS)
        assert (tree.depths, tree.depth) == (same.depths, same.depth)
        largest = max(tree.token_ids, default=-1)
        tree.validate(vocab_size=largest + 1, max_nodes=len(tree), max_depth=tree.depth)
        if largest >= 0:
            with pytest.raises(ValueError, match="vocabulary"):
                tree.validate(vocab_size=largest, max_nodes=len(tree), max_depth=tree.depth)


def test_plain_trees_are_read() -> None:
    draw = random.Random(1)
    for _ in range(300):
        data = plain_message(draw)
        assert read(data) is not None
        agree(data)


def test_damaged_messages_are_left_to_the_parser_or_read_alike() -> None:
    draw = random.Random(2)
    for _ in range(3000):
        message = bytearray(plain_message(draw) or b"\n")
        for _ in range(draw.randint(1, 3)):
            message[draw.randrange(len(message))] = draw.getrandbits(8)
        agree(bytes(message))
        agree(bytes(message[: draw.randint(0, len(message))]))


def test_any_bytes() -> None:
    draw = random.Random(3)
    for _ in range(3000):
        agree(draw.randbytes(draw.randint(0, 30)))


STAMP = tree_pb2.Stamp(epoch=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": [1]},
        {"parents": [-1]},
        {"token_ids": [1, 2], "parents": [-1, 1]},
        {"token_ids": [1, 2], "parents": [-1, -2]},
        {"token_ids": [LARGEST + 1], "parents": [-1]},
        {"token_ids": [1, 2], "parents": [-1, 0], "log_probs": [-1.0]},
        {"token_ids": [1], "parents": [-1], "log_probs": [float("nan")]},
        {"token_ids": [1], "parents": [-1], "log_probs": [float("-inf")]},
        {"token_ids": [1], "parents": [-1], "sources": [0]},
        {"token_ids": [1] * MAX_ROWS, "parents": [-1] * MAX_ROWS},
    ],
)
def test_other_trees_are_left_to_the_parser(fields: dict[str, Any]) -> None:
    assert read(message_of(tree_pb2.TokenTree(stamp=STAMP, **fields))) is None


def test_fields_that_trees_of_older_drafters_have_are_left_to_the_parser_which_passes_over_them() -> None:
    more = b"\x30\x05\x3a\x02\x08\x05"  # field 6, a number, and field 7, a message
    tree = tree_pb2.TokenTree(stamp=STAMP, token_ids=[1], parents=[-1])
    data = message_of(tree_pb2.TokenTree.FromString(tree.SerializeToString() + more))
    assert data.endswith(more)
    assert read(data) is None
    assert decode_replies(data, SLOTS) == [TreeReply(Stamp(1, 0, 0, 0, 0), TokenTree((1,), (-1,)))]


def test_what_is_no_tree_is_left_to_the_parser() -> None:
    no_stamp = message_of(tree_pb2.TokenTree())
    nack = draft_pb2.ExchangeRequest(replies=[draft_pb2.DraftReply(nack=draft_pb2.Nack(stamp=STAMP))])
    for data in (no_stamp, nack.SerializeToString(), draft_pb2.ExchangeRequest(share=0.5).SerializeToString()):
        assert read(data) is None
    assert read(b"") == []


def test_a_field_that_comes_twice_or_out_of_order_is_left_to_the_parser() -> None:
    tree = tree_pb2.TokenTree(stamp=STAMP, token_ids=[1], parents=[-1]).SerializeToString()
    ids, stamp = bytes([0x12, 1, 1]), STAMP.SerializeToString()
    for body in (tree + ids, ids + tree, tree + bytes([10, len(stamp)]) + stamp):
        data = bytes([10, len(body) + 2, 10, len(body)]) + body
        assert draft_pb2.ExchangeRequest.FromString(data).replies[0].HasField("tree")
        assert read(data) is None


def test_a_length_beyond_the_message_is_refused() -> None:
    for length in (2**31, 2**56, 2**63 - 1):
        varint = b""
        while length > 127:
            varint, length = varint + bytes([128 | length & 127]), length >> 7
        for head in (b"\n", b"\n\n\n", b"\n\x0f\n\x0d\n\x00\x12"):
            data = head + varint + bytes([length]) + struct.pack("<q", -1)
            assert read(data) is None
            with pytest.raises(InvalidArgumentError):
                decode_replies(data, SLOTS)


def test_long_messages_are_read_to_a_limit() -> None:
    tree = tree_pb2.TokenTree(stamp=STAMP, token_ids=[5] * 63, parents=[-1] * 63, log_probs=[-0.5] * 63)
    one = message_of(tree)
    count = MOST_BYTES // len(one)
    found = TreeReader().read(one * count) or []
    assert found == found[:1] * count
    assert TreeReader().read(one * (count + 1)) is None
