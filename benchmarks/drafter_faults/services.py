"""The three services under the launcher's supervision, for benchmarks that kill, stop and restart them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from benchmarks.drafter_faults.holdings import Holdings, Sample
from benchmarks.lib.runner import verify_state
from benchmarks.lib.server_process import with_test_modules
from launcher.services.commands import Layout, join_address
from launcher.services.free_ports import free_ports
from launcher.services.process import ServiceCommand, ServiceProcess
from launcher.services.readiness import wait_attached
from launcher.supervision.cluster import LOOPBACK, Cluster
from launcher.supervision.supervisor import RestartPolicy, Supervisor
from slipstream.v1 import verify_pb2

START_SECONDS = 120.0
POLL_SECONDS = 0.02
_TIME = 23
"""Characters of a log line's time."""
AT_ONCE = RestartPolicy(first_seconds=0.05, longest_seconds=0.05, max_failures=0)
"""What ends is started again without a pause, however often."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a service's log: when it was written (time.time() in seconds), and what behind the service's name."""

    wall: float
    text: str

    @classmethod
    def of(cls, line: str) -> LogLine | None:
        """None for one without a time, as of a traceback. `line` begins with the service's name and a colon."""
        name, _, said = line.partition(": ")
        wall = wall_time(said)
        return None if wall is None else cls(wall, f"{name}: {said[_TIME:].strip()}")


def wall_time(line: str) -> float | None:
    """The time at the beginning of a line of a log."""
    try:
        return time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S")) + float(line[19:_TIME])
    except ValueError:
        return None


@dataclass(slots=True)
class Services:
    """All services of one layout. Whatever ends is started again, as `slipstream serve` does, but at once.

    `drafters` names the draft services, of which the newest that is attached has the requests.
    """

    cluster: Cluster
    supervisor: Supervisor
    drafters: tuple[str, ...]
    log: list[str] = field(default_factory=list)

    @property
    def grpc(self) -> str:
        """The gateway's gRPC address."""
        return self.cluster.gateway_grpc

    @property
    def verify_pid(self) -> int:
        return self.supervisor.process("verify").pid

    @property
    def drafts(self) -> list[ServiceProcess]:
        """The newest process of each draft service."""
        return [self.supervisor.process(name) for name in self.drafters]

    @property
    def draft_pids(self) -> set[int]:
        return {process.pid for process in self.drafts}

    def signal_drafts(self, number: signal.Signals) -> None:
        """Send a signal to all draft services."""
        for process in self.drafts:
            process.signal(number)

    def state(self) -> verify_pb2.GetStateResponse:
        """The verify service's counters."""
        return verify_state(self.cluster.verify_address)

    def verify_cpu_seconds(self) -> float:
        """Processor time that the verify service has taken, which other load of the machine hardly changes."""
        fields = Path(f"/proc/{self.verify_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def holdings(self) -> Holdings:
        """What the verify service holds."""
        return Holdings.of(self.verify_pid)

    def sample(self) -> Sample:
        """Of what it holds, as much as can be told under load."""
        return Sample.of(self.verify_pid)

    def attached(self, pid: int) -> bool:
        """Whether the draft service of that process is attached, to a verify service that is ready."""
        try:
            return any(drafter.process_id == pid for drafter in self.state().drafters)
        except grpc.RpcError:
            return False

    def all_attached(self) -> bool:
        """Whether every draft service is attached, to a verify service that is ready."""
        try:
            return self.draft_pids <= {drafter.process_id for drafter in self.state().drafters}
        except grpc.RpcError:
            return False

    def any_attached(self) -> bool:
        """Whether some draft service is attached."""
        return any(drafter.process_id in self.draft_pids for drafter in self.state().drafters)

    def kill_draft(self, requests: Mapping[int, int]) -> tuple[int, float, float]:
        """SIGKILL the draft service with most of the `requests`, by process; return when its attachment is over.

        Which process that was, and the signal's time.perf_counter() and time.time().
        """
        process = max(self.drafts, key=lambda each: requests.get(each.pid, -1))
        at, wall = time.perf_counter(), time.time()
        process.signal(signal.SIGKILL)
        self.wait_until(lambda: not self.attached(process.pid), "is attached though it was killed")
        return process.pid, at, wall

    def log_lines(self) -> list[LogLine]:
        """What all services have logged with a time."""
        return [line for text in self.log if (line := LogLine.of(text)) is not None]

    def wait_accepted(self, tokens: int, seconds: float = START_SECONDS) -> None:
        """Return when so many drafted tokens more have been accepted."""
        goal = self.state().accepted_tokens + tokens
        self.wait_until(lambda: self.state().accepted_tokens >= goal, "does not draft", seconds)

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        """Poll; RuntimeError with the end of the services' log after `seconds`."""
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                raise RuntimeError("\n".join([f"the draft service {what}", *self.log[-30:]]))
            time.sleep(POLL_SECONDS)


@contextmanager
def supervised(
    model: Path,
    draft: Sequence[str],
    *,
    verify: Sequence[str],
    drafter: Sequence[str],
    environment: Mapping[str, str],
    drafters: int = 1,
) -> Iterator[Services]:
    """Start all services, `drafters` of them draft services; wait until all is attached, and end them afterwards."""
    cluster = Cluster(
        model,
        draft=draft,
        verify_args=verify,
        draft_args=drafter,
        gateway_args=("--resume-seconds", "240"),
        env={**with_test_modules(), **environment},
    )
    layout, log = cluster.layout, list[str]()
    drafting = [layout.drafter, *_more_drafters(layout, drafters - 1)]
    commands = (layout.gateway, *drafting, layout.verify)
    supervisor = Supervisor(commands, lambda name, line: log.append(f"{name}: {line}"), AT_ONCE)
    supervisor.start(START_SECONDS)
    services = Services(cluster, supervisor, tuple(command.name for command in drafting), log)
    try:
        wait_attached(cluster.verify_address, layout.served_names, supervisor.process("draft"), START_SECONDS)
        services.wait_until(services.all_attached, "did not attach")
        yield services
    finally:
        services.signal_drafts(signal.SIGCONT)
        supervisor.drain(10.0)
        supervisor.kill()


def start_times(services: Services) -> list[str]:
    """What the first draft service has logged, each line behind its seconds from the start of the process."""
    process = services.drafts[0]
    ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    begun = time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    lines: list[str] = []
    for line in process.log().splitlines():
        at = wall_time(line)
        if at is not None:
            lines.append(f"  {at - begun:+.2f} s {line[_TIME:].strip()[:150]}")
    return lines


def fallbacks(services: Services) -> list[str]:
    """Why draft services did not attach by the best transport that verify had, as they have logged it."""
    lines = (line for process in services.drafts for line in process.log().splitlines())
    return [line.partition(" (not by ")[2].removesuffix(")") for line in lines if " (not by " in line]


def _more_drafters(layout: Layout, number: int) -> list[ServiceCommand]:
    """The same draft service so many times more, each under a name and an address of its own."""
    ports = free_ports(number)
    addresses = [join_address(LOOPBACK, port) for port in ports]
    return [
        replace(replace(layout, draft_address=address).drafter, name=f"draft-{index}")
        for index, address in enumerate(addresses, start=2)
    ]
