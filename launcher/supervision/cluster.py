"""The services as bare processes on free loopback ports, unwatched: for tests, benchmarks and offline use."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from launcher.services.commands import Layout, join_address
from launcher.services.free_ports import free_ports
from launcher.services.process import LogSink, ServiceCommand, ServiceProcess, Spawner, discard_log
from launcher.services.readiness import StartupError, wait_attached, wait_serving
from launcher.services.tls_files import TlsFiles
from slipstream.rpc.unix_socket import SCHEME

LOOPBACK = "127.0.0.1"
START_SECONDS = 240.0
"""The first start on a machine compiles the CPU kernels."""
STOP_SECONDS = 40.0
"""Above what draining takes at most: a busy machine may be slow to end idle services too."""


class Cluster:
    """Starts verify, draft (if `draft` names proposers) and gateway, waits until they serve, and stops them at the end.

    Nothing is restarted by itself: `kill` and `start` do what a test wants. `draft` holds NAME[:DIR] of each proposer,
    the default first; those behind "inproc:" run in the verify service. In a folder `sockets` the services listen on
    Unix sockets instead of ports. With `start_draft_now=False` the verify service
    knows the others, but nothing offers them yet. `spawner` starts the processes.
    """

    def __init__(
        self,
        model: Path,
        *,
        draft: Sequence[str] = (),
        verify_args: Sequence[str] = (),
        draft_args: Sequence[str] = (),
        gateway_args: Sequence[str] = (),
        gateway: bool = True,
        start_draft_now: bool = True,
        env: Mapping[str, str] | None = None,
        tls: TlsFiles | None = None,
        sockets: Path | None = None,
        sink: LogSink = discard_log,
        spawner: Spawner | None = None,
    ) -> None:
        names = ("verify", "draft", "grpc", "http")
        if sockets is None:
            verify, drafter, grpc, http = (join_address(LOOPBACK, port) for port in free_ports(len(names)))
        else:
            verify, drafter, grpc, http = (f"{SCHEME}{sockets / name}.sock" for name in names)
        self.layout = Layout(
            model=model,
            draft=tuple(draft),
            verify_address=verify,
            draft_address=drafter,
            grpc_address=grpc,
            http_address=http,
            verify_arguments=tuple(verify_args),
            draft_arguments=tuple(draft_args),
            gateway_arguments=tuple(gateway_args),
            environment=dict(env or {}),
            tls=tls,
        )
        self._wanted = [
            "verify",
            *(["draft"] if self.layout.served and start_draft_now else []),
            *(["gateway"] if gateway else []),
        ]
        self._services: dict[str, ServiceProcess] = {}
        self._spawner = spawner or Spawner()
        self._sink = sink
        self._ended: list[ServiceProcess] = []

    @property
    def verify_address(self) -> str:
        """gRPC address of the verify service."""
        return self.layout.verify_address

    @property
    def draft_address(self) -> str:
        """gRPC address of the draft service's own server."""
        return self.layout.draft_address

    @property
    def gateway_grpc(self) -> str:
        """gRPC address of the gateway."""
        return self.layout.grpc_address

    @property
    def http_url(self) -> str:
        """Base URL of the gateway's port, without a trailing slash."""
        return f"http://{self.layout.http_address}"

    @property
    def processes(self) -> dict[str, subprocess.Popen[str]]:
        """The newest process of each service: "verify", "draft", "gateway"."""
        return {name: service.popen for name, service in self._services.items()}

    def start(self, name: str) -> None:
        """Start one service, again if it has ended, without waiting."""
        former = self._services.get(name)
        if former is not None:
            if former.running:
                raise RuntimeError(f"{name} runs already")
            self._ended.append(former)
        self._services[name] = ServiceProcess(self._command(name), self._spawner, self._sink)

    def start_draft(self) -> None:
        """Start the draft service (again) and wait until its proposers are attached."""
        self.start("draft")
        self._wait_attached(START_SECONDS)

    def kill(self, name: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one service; returns when it has ended, unless it is a signal one survives."""
        service = self._services[name]
        service.signal(sig)
        if sig in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            service.wait(START_SECONDS)

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Return once every running service serves and the drafter is attached; StartupError with logs otherwise."""
        deadline = time.monotonic() + timeout
        wait_serving(list(self._services.values()), deadline)
        if "draft" in self._services and "verify" in self._services:
            self._wait_attached(max(1.0, deadline - time.monotonic()))

    def logs(self, name: str) -> str:
        """All output of a service, earlier processes of it included."""
        processes = [each for each in self._ended if each.command.name == name]
        return "\n".join(each.log() for each in [*processes, self._services[name]])

    def stop(self) -> None:
        """End all services: SIGTERM together, SIGKILL for those that stay."""
        for service in self._services.values():
            service.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for service in self._services.values():
            if service.wait(max(0.0, deadline - time.monotonic())) is None:
                service.kill()

    def __enter__(self) -> Self:
        """Start everything and wait until it serves."""
        try:
            for name in self._wanted:
                self.start(name)
            self.wait_ready(float(os.environ.get("SLIPSTREAM_START_SECONDS", START_SECONDS)))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self.stop()

    def _command(self, name: str) -> ServiceCommand:
        return {"verify": self.layout.verify, "draft": self.layout.drafter, "gateway": self.layout.gateway}[name]

    def _wait_attached(self, seconds: float) -> None:
        drafter = self._services["draft"]
        refused = wait_attached(self.verify_address, self.layout.served_names, drafter, seconds)
        if refused:
            raise StartupError("; ".join(f"proposer {name} is not attached: {why}" for name, why in refused.items()))
