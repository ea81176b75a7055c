"""Settings of how a service is reached, and reaches others: TLS between services, Unix sockets."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, model_validator

from slipstream.rpc.tls import Tls, check_files
from slipstream.rpc.unix_socket import MAX_PATH_BYTES, UnixSocket, is_unix
from slipstream.settings import ServiceSettings


def _octal(digits: str) -> str:
    if not (digits and len(digits) <= 4 and set(digits) <= set("01234567") and int(digits, 8) <= 0o777):
        raise ValueError("must be permissions in octal digits, such as 660")
    return digits


def _short(path: Path) -> Path:
    if len(bytes(path)) > MAX_PATH_BYTES:
        raise ValueError(f"must have at most {MAX_PATH_BYTES} bytes")
    return path


Permissions = Annotated[str, AfterValidator(_octal)]
SocketPath = Annotated[Path, AfterValidator(_short)]


def checked_address(address: str) -> str:
    """The address of a service to dial, if it is host:port or unix:PATH; ValueError otherwise."""
    host, colon, port = address.rpartition(":")
    if is_unix(address):
        if not host or not port:
            raise ValueError(f"{address!r} is not unix:PATH")
    elif not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{address!r} is not host:port or unix:PATH")
    return address


class TransportSettings(ServiceSettings):
    """Base of the settings of all services."""

    tls_cert: Path | None = None
    """Certificate of this service for connections between services, PEM, followed by intermediate ones if there are
    any. With it, --tls-key and --tls-ca these connections are encrypted and both ends show theirs."""

    tls_key: Path | None = None
    """Private key of --tls-cert, PEM, without a password."""

    tls_ca: Path | None = None
    """Certificates of the authority that those of all services are signed by, PEM."""

    tls_server_name: str = ""
    """Name that certificates of the services dialled must be issued for; default: the host that is dialled."""

    uds: SocketPath | None = None
    """Unix socket to listen on in place of a host and port; never encrypted."""

    uds_mode: Permissions = "600"
    """Permissions of Unix sockets, in octal digits: who may connect."""

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        check_files(*files, ("--tls-cert", "--tls-key", "--tls-ca"))
        if any(files) and not all(files):
            raise ValueError("--tls-cert, --tls-key and --tls-ca go together: between services both ends show theirs")
        if self.tls_server_name and not all(files):
            raise ValueError("--tls-server-name needs --tls-cert, --tls-key and --tls-ca")
        return self

    @cached_property
    def tls(self) -> Tls | None:
        """Of connections between services; None: these are in plain text."""
        if self.tls_ca is None:
            return None
        return Tls.read(self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name)

    @property
    def unix_socket(self) -> UnixSocket | None:
        """Of `uds`."""
        return self._socket(self.uds)

    def _socket(self, path: Path | None) -> UnixSocket | None:
        return None if path is None else UnixSocket(path, int(self.uds_mode, 8))
