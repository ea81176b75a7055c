"""Records of the exchange: both ends hold the same ones, and each step's are cheap, hashable values."""

from __future__ import annotations

import pytest

from draft_service.protocol import codec as draft_codec
from slipstream_kernels.draft_protocol.records import (  # fmt: skip
    Commit,
    Gap,
    Nack,
    Reply,
    Resume,
    Stamp,
    TrafficWeight,
    TreeReply,
)
from slipstream_kernels.token_tree import TokenTree
from verify_service.draft_link import codec as verify_codec

STAMP = Stamp(7, 2, 1, 3, 42)


def test_what_one_end_writes_the_other_reads_as_the_same_record() -> None:
    commands = [Commit(STAMP, [42], 6, 3, handed=True), Gap(STAMP, 4)]
    assert draft_codec.decode_command_bytes(verify_codec.encode_commands(commands)) == commands
    replies: list[Reply] = [
        TreeReply(STAMP, TokenTree((5, 6), (-1, 0)), (0, 1)),
        Resume(STAMP, 2),
        Nack(STAMP, "no"),
        TrafficWeight(0.5),
    ]
    data = draft_codec.encode_replies(replies).SerializeToString()
    assert verify_codec.decode_replies(data, 4) == replies


def test_a_commit_is_a_frozen_value_without_a_dictionary() -> None:
    commit = Commit(STAMP, (42,), 6, 3)
    assert commit == Commit(Stamp(7, 2, 1, 3, 42), (42,), 6, 3)
    assert hash(commit) == hash(Commit(STAMP, (42,), 6, 3))
    assert not hasattr(commit, "__dict__")
    with pytest.raises(AttributeError):
        commit.max_nodes = 7  # type: ignore[misc]  # what must fail
