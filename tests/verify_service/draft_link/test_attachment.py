"""The terms of an attachment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipstream.rpc.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    SlipstreamError,
    UnauthenticatedError,
)
from slipstream.v1.verify_pb2 import GetInfoResponse
from slipstream_kernels.draft_protocol.records import RoundCost
from verify_service.draft_link.attachment import check_token, negotiate, new_attachment
from verify_service.draft_link.link_config import TRANSPORTS
from verify_service.draft_link.link_state import ProposerStatus
from verify_service.draft_link.records import AttachRequest, LinkFacts, Offer, Unfit
from verify_service.server.codec import encode_info
from verify_service.server.server_info import ServerInfo

FACTS = LinkFacts("model", "tokenizer", 512, 128, 2, 512, 64)
VERIFY = ServerInfo("n", "/m", "fp", "tp", 10, 20, 3, 4, (1,), "exact", "cuda", 16, 99, 64, 123, "0.1")
FITTING = AttachRequest(
    min_version=1,
    max_version=3,
    token="",
    offers=(Offer("ngram", 64, 63),),
    tokenizer_fingerprint="tokenizer",
    vocab_size=512,
    transports=("cuda_ipc", "grpc"),
    name="d",
    address="",
    process_id=1,
)


def costly(*costs: tuple[int, int, float]) -> Offer:
    """An offer whose rounds take so long, by its own word."""
    return Offer("a", 64, 63, round_costs=tuple(RoundCost(*cost) for cost in costs))


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        (("shm", "grpc"), ("cuda_ipc", "grpc"), ("grpc",)),
        (("shm", "grpc"), ("grpc", "shm"), ("shm", "grpc")),
        (("grpc", "shm"), ("shm", "grpc"), ("grpc", "shm")),
        (("shm",), ("shm", "grpc"), ("shm",)),
    ],
)
def test_the_highest_common_version_and_all_common_transports_are_taken(ours, theirs, common) -> None:
    assert negotiate(replace(FITTING, transports=theirs), FACTS, ours) == (1, common)


def test_a_drafter_may_work_with_any_tokenizer() -> None:
    assert negotiate(replace(FITTING, tokenizer_fingerprint="", vocab_size=0), FACTS, TRANSPORTS) == (
        1,
        ("cuda_ipc", "grpc"),
    )


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"min_version": 2}, FailedPreconditionError, "min_version"),
        ({"min_version": 0}, InvalidArgumentError, "min_version"),
        ({"min_version": 4}, InvalidArgumentError, "min_version"),
        ({"tokenizer_fingerprint": "other"}, FailedPreconditionError, "tokenizer_fingerprint"),
        ({"vocab_size": 511}, FailedPreconditionError, "vocab_size"),
        ({"transports": ()}, FailedPreconditionError, "transports"),
        ({"offers": ()}, InvalidArgumentError, "proposers"),
        ({"offers": (Offer("a", 64, 63),) * 2}, InvalidArgumentError, "proposers[1].name"),
        ({"offers": (Offer("", 64, 63),)}, InvalidArgumentError, "proposers[0].name"),
        ({"offers": (Offer("a\n", 64, 63),)}, InvalidArgumentError, "proposers[0].name"),
        ({"offers": (Offer("a", 1, 63),)}, InvalidArgumentError, "proposers[0].max_nodes"),
        ({"offers": (Offer("a", 2, 0),)}, InvalidArgumentError, "proposers[0].max_depth"),
        ({"offers": (Offer("a", 2, 1, (4,)),)}, FailedPreconditionError, "proposers[0].feature_boundaries"),
        ({"offers": (costly(*[(1, 1, 1.0)] * 65),)}, InvalidArgumentError, "proposers[0].round_costs"),
        ({"offers": (costly((0, 1, 1.0)),)}, InvalidArgumentError, "proposers[0].round_costs[0].requests"),
        ({"offers": (costly((65_537, 1, 1.0)),)}, InvalidArgumentError, "proposers[0].round_costs[0].requests"),
        ({"offers": (costly((1, 64, 1.0)),)}, InvalidArgumentError, "proposers[0].round_costs[0].levels"),
        ({"offers": (costly((1, 0, 1.0)),)}, InvalidArgumentError, "proposers[0].round_costs[0].levels"),
        ({"offers": (costly((1, 1, 1.0), (1, 1, 0.0)),)}, InvalidArgumentError, "proposers[0].round_costs[1].seconds"),
        ({"offers": (costly((1, 1, 60.1)),)}, InvalidArgumentError, "proposers[0].round_costs[0].seconds"),
        ({"offers": (costly((1, 1, float("nan"))),)}, InvalidArgumentError, "proposers[0].round_costs[0].seconds"),
        ({"offers": (), "unfit": (Unfit("a", "why"),)}, FailedPreconditionError, "unfit"),
        ({"unfit": (Unfit("a", ""), Unfit("n" * 257, ""))}, InvalidArgumentError, "unfit[1].name"),
        ({"unfit": (Unfit("a", ""),) * 33}, InvalidArgumentError, "unfit"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], error: type[SlipstreamError], field: str) -> None:
    with pytest.raises(error) as caught:
        negotiate(replace(FITTING, **change), FACTS, TRANSPORTS)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given", "expected", "loopback", "fits"),
    [
        ("", "", True, True),
        ("", "secret", True, True),
        ("secret", "secret", True, True),
        ("wrong", "secret", True, False),
        ("wrong", "", True, False),
        ("secret", "secret", False, True),
        ("", "secret", False, False),
        ("", "", False, False),
        ("größe", "secret", False, False),
    ],
)
def test_tokens(given: str, expected: str, loopback: bool, fits: bool) -> None:
    request = replace(FITTING, token=given)
    if fits:
        check_token(request, expected=expected, loopback=loopback)
    else:
        with pytest.raises(UnauthenticatedError):
            check_token(request, expected=expected, loopback=loopback)


def test_a_proposer_computes_where_it_says_and_else_where_its_service_does() -> None:
    offers = (Offer("ngram", 64, 63, device="cpu"), Offer("eagle3", 64, 63), Offer("mtp", 64, 63, device="cuda:1"))
    request = replace(FITTING, offers=offers, device="cuda:1", gpu_uuid="GPU-0b")
    attachment = new_attachment(7, request, 4, 1 << 20)
    places = [attachment.place_of(name) for name in ("ngram", "eagle3", "mtp")]
    assert places == [("cpu", ""), ("cuda:1", "GPU-0b"), ("cuda:1", "GPU-0b")]
    message = GetInfoResponse.FromString(encode_info(VERIFY, [ProposerStatus("ngram", True, attachment)], None))
    assert message.proposers[0].device == "cpu"


def test_an_attached_proposer_is_being_prepared_for_until_that_is_said_to_be_over() -> None:
    offers = (Offer("eagle3", 64, 63, feature_boundaries=(1, 2)), Offer("ngram", 64, 63))
    attachment = new_attachment(7, replace(FITTING, offers=offers), 4, 1 << 20)
    statuses = [ProposerStatus(name, True, attachment) for name in ("eagle3", "ngram")]
    assert [status.boundaries for status in (*statuses, ProposerStatus("eagle3", True, None))] == [(1, 2), (), ()]
    for preparing in (["eagle3"], []):
        message = GetInfoResponse.FromString(encode_info(VERIFY, statuses, None, preparing=preparing))
        assert [each.name for each in message.proposers if each.preparing] == preparing
