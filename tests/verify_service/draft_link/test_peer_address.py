"""Draft services say where they listen as they see it themselves."""

from __future__ import annotations

import pytest

from verify_service.draft_link.peer_address import seen_address


@pytest.mark.parametrize(
    ("advertised", "peer", "seen"),
    [
        ("0.0.0.0:50053", "ipv4:10.77.0.3:4711", "10.77.0.3:50053"),
        ("[::]:50053", "ipv6:%5B2001:db8::7%5D:4711", "[2001:db8::7]:50053"),
        (":::50053", "ipv6:[2001:db8::7]:4711", "[2001:db8::7]:50053"),
        ("0.0.0.0:50053", "ipv6:[::ffff:10.0.0.9]:1", "10.0.0.9:50053"),
        ("0.0.0.0:50053", "ipv4:127.0.0.1:4711", "127.0.0.1:50053"),
        ("127.0.0.1:50053", "ipv4:127.0.0.1:4711", "127.0.0.1:50053"),
        ("127.0.0.1:50053", "ipv4:10.77.0.3:4711", "10.77.0.3:50053"),
        ("10.1.2.3:50053", "ipv4:10.77.0.3:4711", "10.1.2.3:50053"),
        ("draft.example:50053", "ipv4:10.77.0.3:4711", "draft.example:50053"),
        ("0.0.0.0:50053", "unix:/run/slipstream", "0.0.0.0:50053"),
        ("", "ipv4:10.77.0.3:4711", ""),
        ("nonsense", "ipv4:10.77.0.3:4711", "nonsense"),
        ("0.0.0.0:50053", "ipv4:nonsense", "0.0.0.0:50053"),
    ],
)
def test_what_cannot_be_dialled_from_here_is_the_peers_own_address(advertised: str, peer: str, seen: str) -> None:
    assert seen_address(advertised, peer) == seen
