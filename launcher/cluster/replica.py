"""The actor of a replica: verify and draft service as children of its process, under the launcher's supervisor."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.cluster.replica_spec import ReplicaSpec
from launcher.services.commands import Layout, join_address
from launcher.services.free_ports import free_ports
from launcher.services.readiness import StartupError
from launcher.services.standby_spawner import StandbySpawner
from launcher.supervision.supervisor import RestartPolicy, Supervisor

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica's process runs."""

    node: str
    host: str
    process_id: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """A replica serves at `address`, with metrics at `metrics`; or `error` says in one line why it does not."""

    address: str = ""
    metrics: str = ""
    error: str = ""


class Replica:
    """Its methods run in threads of one process. The children get SIGKILL with that process, however it ends."""

    def __init__(self, number: int, spec: ReplicaSpec) -> None:
        self._number = number
        self._spec = spec
        self._given_up = threading.Event()
        self._starting = threading.Lock()
        self._lines: dict[str, str] = {}
        self._started: Started | None = None
        self._supervisor: Supervisor | None = None
        self._spawner = StandbySpawner(signal.SIGKILL)
        self._prepared = False
        self._secret = _attach_secret()

    def place(self) -> Place:
        """Where it runs, as Ray says."""
        from launcher.cluster.ray_session import own_place

        node, host, gpus = own_place()
        return Place(node, host, os.getpid(), gpus)

    def prepare(self, host: str) -> str:
        """Start processes that stand by for the services; why that fails, or nothing. Once is enough."""
        with self._starting:
            try:
                if self._started is None and not self._prepared:
                    self._spawner.prepare(self._layout(host, *free_ports(2, host)).without_gateway, self._log)
                    self._prepared = True
            except (StartupError, OSError) as error:
                return str(error)
            return ""

    def start(self, host: str) -> Started:
        """Start the services, which listen on `host`, and wait until they serve. Called again it says the same."""
        with self._starting:
            if self._started is None:
                try:
                    self._started = self._start(host)
                except (StartupError, OSError, ValueError) as error:
                    self._started = Started(error=getattr(error, "reason", "") or str(error))
            return self._started

    def wait(self, seconds: float) -> str:
        """Why the services are given up; empty if they are not within so many seconds."""
        return self._lines.get("", "") if self._given_up.wait(seconds) else ""

    def progress(self) -> str:
        """The newest line of the services' logs."""
        return next((f"{name}: {line}" for name, line in reversed(self._lines.items()) if name), "")

    def stop(self, seconds: float) -> None:
        """Drain the services within so many seconds."""
        if self._supervisor is not None:
            self._supervisor.drain(seconds)

    def _start(self, host: str) -> Started:
        verify, metrics = free_ports(2, host)
        layout = self._layout(host, verify, metrics)
        supervisor = Supervisor(layout.without_gateway, self._log, RestartPolicy(), self._on_given_up, self._spawner)
        supervisor.start(self._spec.start_seconds)
        self._supervisor = supervisor
        return Started(layout.verify_address, join_address(host, metrics))

    def _layout(self, host: str, verify: int, metrics: int) -> Layout:
        spec = self._spec
        return Layout(
            model=Path(spec.model),
            draft=spec.draft,
            verify_address=join_address(host, verify),
            draft_address=join_address(LOOPBACK, free_ports(1)[0]),
            grpc_address="",
            http_address="",
            verify_arguments=(*_metrics(spec, metrics), *spec.verify_arguments),
            draft_arguments=spec.draft_arguments,
            environment=self._secret,
            tls=spec.tls_files,
        )

    def _on_given_up(self, name: str) -> None:
        self._lines[""] = f"{name} ended again and again: {self._lines.get(name, '')}"
        self._given_up.set()

    def _log(self, name: str, line: str) -> None:
        """To this process's output, which Ray keeps in a file a worker."""
        self._lines.pop(name, None)
        self._lines[name] = line
        print(f"{name:8} | {line}", flush=True)


def _metrics(spec: ReplicaSpec, port: int) -> tuple[str, ...]:
    named = any(flag.split("=")[0] == "--metrics-port" for flag in spec.verify_arguments)
    return () if named else ("--metrics-port", str(port))


def _attach_secret() -> dict[str, str]:
    """What lets the replica's own draft service, and no other, attach to a verify service beyond loopback."""
    names = ("SLIPSTREAM_VERIFY_ATTACH_TOKEN", "SLIPSTREAM_DRAFT_ATTACH_TOKEN")
    secret = secrets.token_hex(16)
    return {} if any(name in os.environ for name in names) else dict.fromkeys(names, secret)
