"""Command lines of the three services on one host."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.services.process import ServiceCommand
from launcher.services.tls_files import TlsFiles
from slipstream.rpc.unix_socket import SCHEME, is_unix

NO_DRAFT = "none"
IN_PROCESS = "inproc:"
"""Stands before proposers that the verify service runs in its own process."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What runs where on one host, each address host:port or unix:PATH.

    Ports are fixed before anything starts, so that restarts keep them.
    """

    model: Path
    draft: tuple[str, ...]
    """NAME[:DIR] of each proposer, those of the verify service's own process behind `IN_PROCESS`."""
    verify_address: str
    draft_address: str
    grpc_address: str
    http_address: str
    verify_arguments: tuple[str, ...] = ()
    draft_arguments: tuple[str, ...] = ()
    gateway_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    tls: TlsFiles | None = None
    """Of connections between the services; None: plain text."""
    health_socket: Path | None = None
    """Where the gateway is asked for its health, in place of its gRPC address."""
    wait_for_drafter: float = 0.0
    """For how many seconds the gateway's readiness waits for proposers to be attached."""

    @property
    def proposers(self) -> tuple[str, ...]:
        """Names of the proposers, the operator's default first; one that is hosted in both places is there once."""
        return tuple(dict.fromkeys(proposer_name(spec) for spec in self.draft))

    @property
    def served(self) -> tuple[str, ...]:
        """Those of the draft service; empty: there is none."""
        return tuple(spec for spec in self.draft if not spec.startswith(IN_PROCESS))

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names of those of the draft service."""
        return tuple(map(proposer_name, self.served))

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of those of the verify service's own process."""
        return tuple(proposer_name(spec) for spec in self.draft if spec.startswith(IN_PROCESS))

    @property
    def verify(self) -> ServiceCommand:
        """The verify service."""
        names = ("--proposers", ",".join(self.proposers), "--default-proposer", self.proposers[0]) if self.draft else ()
        own = (spec.removeprefix(IN_PROCESS) for spec in self.draft if spec.startswith(IN_PROCESS))
        inproc = tuple(part for spec in own for part in ("--inproc", spec))
        listen = _listen(self.verify_address)
        others = tuple(part for spec in self.served for part in ("--expected-proposers", spec))
        arguments = ("--model", str(self.model), *listen, *names, *inproc, *others, *self.verify_arguments)
        return self._command("verify", "verify_service", self.verify_address, arguments)

    @property
    def drafter(self) -> ServiceCommand:
        """The draft service."""
        proposers = tuple(part for spec in self.served for part in ("--proposers", spec))
        arguments = ("--verify", self.verify_address, *_listen(self.draft_address), *proposers, *self.draft_arguments)
        return self._command("draft", "draft_service", self.draft_address, arguments, essential=False)

    @property
    def gateway(self) -> ServiceCommand:
        """The gateway. Its two doors share one host, if both have any."""
        doors: dict[str, str] = {}
        for name, uds, address in (("http", "--uds", self.http_address), ("grpc", "--grpc-uds", self.grpc_address)):
            if is_unix(address):
                doors[uds] = address.removeprefix(SCHEME)
            else:
                doors["--host"], port = split_address(address)[0], split_address(address)[1]
                doors[f"--{name}-port"] = str(port)
        if self.health_socket is not None:
            doors["--health-uds"] = str(self.health_socket)
        flags = tuple(part for door in doors.items() for part in door)
        if self.wait_for_drafter:
            flags = (*flags, "--wait-for-drafter", f"{self.wait_for_drafter:g}")
        arguments = ("--verify", self.verify_address, "--model", str(self.model), *flags, *self.gateway_arguments)
        asked = f"{SCHEME}{self.health_socket}" if self.health_socket is not None else reachable(self.grpc_address)
        # Its ports speak TLS with clients, if at all: the files of `tls` are for its connections to verify services.
        command = self._command("gateway", "gateway", asked, arguments)
        return replace(command, tls=None, serves_later=bool(self.wait_for_drafter))

    @property
    def without_gateway(self) -> tuple[ServiceCommand, ...]:
        """The draft service, if there is one, and the verify service."""
        return (*([self.drafter] if self.served else []), self.verify)

    def _command(
        self, name: str, module: str, address: str, arguments: Sequence[str], *, essential: bool = True
    ) -> ServiceCommand:
        command = (sys.executable, "-m", module, *(self.tls.arguments if self.tls else ()), *arguments)
        tls = self.tls.read() if self.tls else None
        return ServiceCommand(name, command, address, self.environment, essential, tls)


def proposer_name(spec: str) -> str:
    """The name in NAME, NAME:DIR or NAME=module:factory[:ARG], wherever it runs."""
    return spec.removeprefix(IN_PROCESS).split(":", 1)[0].split("=", 1)[0]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of host:port."""
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(address: str) -> str:
    """An address to dial on this host for one that was bound: wildcards become loopback."""
    if is_unix(address):
        return address
    host, port = split_address(address)
    return join_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)  # noqa: S104  # compared only


def _listen(address: str) -> tuple[str, ...]:
    if is_unix(address):
        return ("--uds", address.removeprefix(SCHEME))
    host, port = split_address(address)
    return ("--host", host, "--port", str(port))
