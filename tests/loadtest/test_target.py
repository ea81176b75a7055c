from __future__ import annotations

import pytest

from loadtest.target import TargetError, parse_target


def test_loopback_is_allowed():
    target = parse_target("http://localhost:8000", "127.0.0.1:50051")
    assert (target.http_url, target.grpc_address) == ("http://localhost:8000", "127.0.0.1:50051")


@pytest.mark.parametrize(
    ("http", "grpc"), [("http://192.168.7.7:8000", "127.0.0.1:1"), ("http://127.0.0.1:8000", "10.0.0.1:50051")]
)
def test_other_machines_are_refused_unless_asked_for(http, grpc):
    with pytest.raises(TargetError, match="--remote"):
        parse_target(http, grpc)
    parse_target(http, grpc, remote=True)


@pytest.mark.parametrize(("http", "grpc"), [("https://127.0.0.1", "127.0.0.1:1"), ("127.0.0.1:1", "127.0.0.1")])
def test_malformed_addresses_name_the_flag(http, grpc):
    with pytest.raises(TargetError, match=r"--(host|grpc) wants"):
        parse_target(http, grpc)
