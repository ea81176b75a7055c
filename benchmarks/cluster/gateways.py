"""Gateways outside of Ray, which follow its cluster's directory; each can be killed, and one cut off from replicas."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from launcher.services.commands import join_address, split_address
from launcher.services.free_ports import free_ports
from launcher.services.process import ServiceCommand, ServiceProcess, Spawner
from launcher.services.readiness import wait_serving

LOOPBACK = "127.0.0.1"
START_SECONDS = 240.0
END_SECONDS = 30.0
NETWORK, HERE, THERE = "slipstream-apart", "10.213.77.1", "10.213.77.2"
"""A network namespace, and both ends of its only link."""


class Gateways:
    """So many, within a `with` block. `apart`: the first has a network namespace of its own, which takes root."""

    def __init__(self, count: int, model: Path, directory: str, *, apart: bool = False) -> None:
        self._spawner = Spawner()
        self._stack = ExitStack()
        self._apart = apart
        self._commands = [self._command(model, directory, apart=apart and not index) for index in range(count)]
        self.processes: list[ServiceProcess] = []

    @property
    def addresses(self) -> list[str]:
        """Where each speaks gRPC."""
        return [each.address for each in self._commands]

    def again(self, number: int) -> None:
        """Start one that has ended, without waiting."""
        self.processes[number] = ServiceProcess(self._commands[number], self._spawner)

    def wait(self) -> None:
        """Until all serve. An error where one ends, or takes too long."""
        wait_serving(self.processes, time.monotonic() + START_SECONDS)

    @contextmanager
    def cut(self, address: str) -> Iterator[None]:
        """Within, packets between the first gateway and the server at an address are lost in both directions."""
        host, port = split_address(address)
        rules = [("-n", NETWORK, "rule", "add", "pref", "10", "to", host, "ipproto", "tcp", "dport", str(port)),
                 ("rule", "add", "pref", "10", "to", THERE, "ipproto", "tcp", "sport", str(port))]  # fmt: skip
        with ExitStack() as stack:
            for rule in rules:
                _ip(*rule, "blackhole")
                stack.callback(_ip, *("del" if part == "add" else part for part in rule), "blackhole")
            yield

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._apart:
                _ip("netns", "add", NETWORK)
                stack.callback(_ip, "netns", "del", NETWORK)
                _ip("link", "add", "slipstream0", "type", "veth", "peer", "name", "slipstream1", "netns", NETWORK)
                _ip("addr", "add", f"{HERE}/30", "dev", "slipstream0")
                _ip("link", "set", "slipstream0", "up")
                _ip("-n", NETWORK, "addr", "add", f"{THERE}/30", "dev", "slipstream1")
                _ip("-n", NETWORK, "link", "set", "slipstream1", "up")
                _ip("-n", NETWORK, "route", "add", "default", "via", HERE)
            for command in self._commands:
                self.processes.append(ServiceProcess(command, self._spawner))
            stack.callback(self._stop)
            self.wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _stop(self) -> None:
        for each in self.processes:
            each.stop(END_SECONDS)

    @staticmethod
    def _command(model: Path, directory: str, *, apart: bool) -> ServiceCommand:
        http, grpc = map(str, free_ports(2))
        host, inside = (THERE, ("ip", "netns", "exec", NETWORK)) if apart else (LOOPBACK, ())
        where = ("--host", host, "--http-port", http, "--grpc-port", grpc)
        followed = ("--model", str(model), "--directory", directory, "--no-access-log")
        command = (*inside, sys.executable, "-m", "gateway", *followed, *where)
        return ServiceCommand("gateway", command, join_address(host, int(grpc)))


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True)
