"""Which peers count as this host's own."""

from __future__ import annotations

import pytest

from verify_service.draft_servicer import _on_loopback


@pytest.mark.parametrize(
    ("peer", "own"),
    [
        ("ipv4:127.0.0.1:4711", True),
        ("ipv4:127.8.8.8:1", True),
        ("ipv6:[::1]:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("ipv6:[::ffff:127.0.0.1]:4711", True),
        ("unix:/run/slipstream", True),
        ("ipv4:10.0.0.1:127", False),
        ("ipv4:1.127.0.1:1", False),
        ("ipv6:[2001:db8::1]:1", False),
        ("", False),
    ],
)
def test_loopback(peer: str, own: bool) -> None:
    assert _on_loopback(peer) is own
