"""Certificates of one end of a connection, and what gRPC makes of them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM of the authority that peers' certificates must be signed by, and one's own chain and key, if there are any.

    `server_name` is what certificates of servers must be issued for; empty: the host that is dialled.
    """

    authority: bytes
    chain: bytes = b""
    key: bytes = field(default=b"", repr=False)
    server_name: str = ""

    @classmethod
    def read(cls, authority: Path, chain: Path | None, key: Path | None, server_name: str = "") -> Self:
        """From files that `check_files` has found good. OSError if one cannot be read."""
        own = (chain.read_bytes(), key.read_bytes()) if chain is not None and key is not None else (b"", b"")
        return cls(authority.read_bytes(), *own, server_name)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Of a client, which shows its own certificate where it has one."""
        return grpc.ssl_channel_credentials(self.authority, self.key or None, self.chain or None)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of a server that takes only clients with a certificate of the same authority."""
        return grpc.ssl_server_credentials([(self.key, self.chain)], self.authority, require_client_auth=True)


def check_files(chain: Path | None, key: Path | None, authority: Path | None, flags: tuple[str, str, str]) -> None:
    """ValueError, naming one of `flags` (of chain, key and authority), for a file that is none of what it should be."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for file, flag in zip((chain, key, authority), flags, strict=True):
        try:
            if file is not None:
                file.read_bytes()
        except OSError as error:
            raise ValueError(f"{flag}: cannot read {file}: {error.strerror}") from error
    if (chain is None) != (key is None):
        raise ValueError(f"{flags[0]} and {flags[1]} go together")
    if chain is not None and key is not None:
        try:
            context.load_cert_chain(chain, key, _no_password)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(
                f"{flags[0]}, {flags[1]}: {chain} and {key} are no certificate in PEM and its key without a password"
            ) from error
    if authority is not None:
        try:
            context.load_verify_locations(authority)
        except ssl.SSLError as error:
            raise ValueError(f"{flags[2]}: {authority} holds no certificate in PEM") from error


def _no_password() -> str:
    """An encrypted key is an error; OpenSSL would ask the terminal."""
    return ""
