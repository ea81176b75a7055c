"""Which settings of transport go together."""

from __future__ import annotations

import pytest
from pydantic_settings import SettingsConfigDict

from slipstream.settings import load
from slipstream.transport_settings import TransportSettings, checked_address
from support.certificates import write_certificates


class Sample(TransportSettings):
    """Serve a sample."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_SAMPLE_")


def test_files_of_one_service(tmp_path, monkeypatch, capsys) -> None:
    files = write_certificates(tmp_path, "verify.test")
    settings = load(Sample, "sample", list(files.tls_flags))
    assert settings.tls is not None
    assert (settings.tls.authority, settings.tls.server_name) == (files.ca.read_bytes(), "verify.test")
    monkeypatch.setenv("SLIPSTREAM_SAMPLE_TLS_CERT", str(files.cert))
    for flags, words in (
        ([], "--tls-cert and --tls-key go together"),
        (["--tls-key", str(files.key)], "--tls-cert, --tls-key and --tls-ca go together"),
        (["--tls-key", str(files.ca)], f"--tls-cert, --tls-key: {files.cert} and {files.ca} are no certificate"),
    ):
        with pytest.raises(SystemExit):
            load(Sample, "sample", flags)
        assert words in capsys.readouterr().err


def test_unix_sockets(tmp_path, capsys) -> None:
    settings = load(Sample, "sample", ["--uds", str(tmp_path / "x"), "--uds-mode", "660"])
    assert settings.unix_socket is not None
    assert (settings.unix_socket.address, settings.unix_socket.mode) == (f"unix:{tmp_path}/x", 0o660)
    assert load(Sample, "sample", []).unix_socket is None
    for flags, words in (
        (["--uds-mode", "680"], "--uds-mode: must be permissions in octal digits"),
        (["--uds-mode", "1777"], "--uds-mode: must be permissions in octal digits"),
        (["--uds", "/" + "x" * 107], "--uds: must have at most 107 bytes"),
    ):
        with pytest.raises(SystemExit):
            load(Sample, "sample", flags)
        assert words in capsys.readouterr().err


def test_addresses_to_dial() -> None:
    for address in ("127.0.0.1:1", "[::1]:65535", "verify:50052", "unix:/run/x.sock", "unix:x"):
        assert checked_address(address) == address
    for address in ("verify", "verify:", ":1", "verify:0", "verify:65536", "verify:http", "unix:"):
        with pytest.raises(ValueError, match="is not"):
            checked_address(address)
