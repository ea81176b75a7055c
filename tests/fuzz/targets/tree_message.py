"""Messages of trees as the compiled reader takes them out of shared memory, against a parser of protobuf."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

from fuzz.messages import made
from fuzz.target import BrokenError, Target
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import draft_pb2, tree_pb2
from slipstream_kernels.draft_protocol.records import Reply, TreeReply
from slipstream_kernels.draft_protocol.tree_wire import TreeReader
from slipstream_kernels.token_tree import InvalidTreeError
from verify_service.draft_link.codec import decode_replies

_SLOTS = 8


def tree(random: Random, stamp: tree_pb2.Stamp | None = None) -> tree_pb2.TokenTree:
    """A tree in order, of up to 63 nodes."""
    count = random.choice((0, 1, 2, 5, 15, 63))
    message = tree_pb2.TokenTree(
        stamp=stamp or tree_pb2.Stamp(epoch=1, slot=random.randrange(4), generation=1, base_length=4, root_token=9),
        token_ids=[random.randrange(512) for _ in range(count)],
        parents=[random.randint(-1, node - 1) for node in range(count)],
    )
    if random.random() < 0.5:
        message.log_probs.extend(-random.expovariate(1) for _ in range(count))
    return message


def replies(random: Random) -> draft_pb2.ExchangeRequest:
    """A few trees."""
    return draft_pb2.ExchangeRequest(
        replies=[draft_pb2.DraftReply(tree=tree(random)) for _ in range(random.choice((1, 1, 1, 2, 8)))]
    )


MAKE: tuple[Callable[[Random], draft_pb2.ExchangeRequest], ...] = (replies,)


class TreeMessages(Target):
    """What the compiled reader reads, the parser must read the same; what it declines, the parser decides."""

    name: ClassVar[str] = "tree_message"
    share: ClassVar[int] = 240

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._reader = TreeReader()

    def make(self, random: Random) -> bytes:
        return made(random, MAKE)

    def check(self, data: bytes) -> None:
        quick, slow = (_decoded(data, reader) for reader in (self._reader, None))
        if repr(quick) != repr(slow):  # in which NaN equals NaN
            raise BrokenError(f"compiled: {quick}\nparsed: {slow}")


def _decoded(data: bytes, reader: TreeReader | None) -> list[Reply] | str:
    """Records whose lists are in order, or that they are not."""
    try:
        records = decode_replies(data, _SLOTS, reader)
        for record in records:
            if isinstance(record, TreeReply):
                record.tree.validate(vocab_size=2**31, max_nodes=63, max_depth=63)
    except (InvalidArgumentError, InvalidTreeError):
        return "malformed"
    return records
