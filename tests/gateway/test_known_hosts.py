"""Which names and which pages' origins lead to this server."""

from __future__ import annotations

import socket

import pytest

from gateway.known_hosts import KnownHosts, checked_origin

LOCAL = KnownHosts("127.0.0.1", ())
OPEN = KnownHosts("0.0.0.0", ("api.example.org",))


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:8000", "[::1]:80", "10.1.2.3"]
)
def test_local_names_and_addresses_are_known(host: str) -> None:
    assert LOCAL.knows(host)
    assert OPEN.knows(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.example:8000", "a@localhost", "localhost:x", "",
     "127.0.0.1.nip.io", "localhost/x", "[::1", "2130706433"],
)  # fmt: skip
def test_other_names_are_not(host: str) -> None:
    assert not LOCAL.knows(host)
    assert not OPEN.knows(host)


def test_given_names_and_beyond_loopback_the_machines_own_are_known() -> None:
    assert OPEN.knows("API.example.org:443")
    assert OPEN.knows(socket.gethostname())
    assert KnownHosts("box.lan", ()).knows("box.lan:8000")
    assert not LOCAL.knows("api.example.org")
    assert KnownHosts("127.0.0.1", ("*",)).knows("evil.example")


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]", "http://10.1.2.3:8000"]
)
def test_pages_of_this_machine_or_server_are_trusted(origin: str) -> None:
    assert LOCAL.trusts(origin, "10.1.2.3:8000")


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://10.1.2.4", "file://", "http://localhost.evil.example", "localhost"],
)
def test_other_pages_are_not(origin: str) -> None:
    assert not LOCAL.trusts(origin, "10.1.2.3:8000")
    assert KnownHosts("127.0.0.1", ("*",)).trusts(origin, "10.1.2.3:8000")


def test_named_origins_are_trusted_wherever_they_lead() -> None:
    named = KnownHosts("127.0.0.1", (), ("https://chat.example.org",))
    assert named.trusts("https://chat.example.org", "10.1.2.3:8000")
    for other in ("http://chat.example.org", "https://chat.example.org:8443", "https://a.chat.example.org", "null"):
        assert not named.trusts(other, "10.1.2.3:8000")
    assert KnownHosts("127.0.0.1", (), ("*",)).trusts("null", "10.1.2.3:8000")
    assert not KnownHosts("127.0.0.1", (), ("*",)).knows("evil.example")


def test_origins_are_written_as_browsers_write_them() -> None:
    assert checked_origin("HTTPS://Chat.Example.org/") == "https://chat.example.org"
    for good in ("*", "null", "http://localhost:3000", "http://[::1]:80", "app://x"):
        assert checked_origin(good) == good
    for bad in ("chat.example.org", "https://", "https://a/b", "https://a:b", "http://u@h", "https://a?b", ""):
        with pytest.raises(ValueError, match="is no origin"):
            checked_origin(bad)
