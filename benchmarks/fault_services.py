"""The three services under the launcher's supervision, for benchmarks that kill, stop and restart them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc

from benchmarks.runner import verify_state
from launcher.cluster import Cluster
from launcher.process import ServiceProcess
from launcher.readiness import wait_attached
from launcher.supervisor import RestartPolicy, Supervisor
from slipstream.v1 import verify_pb2

ROOT = Path(__file__).parents[1]
START_SECONDS = 120.0
POLL_SECONDS = 0.02
AT_ONCE = RestartPolicy(first_seconds=0.05, longest_seconds=0.05, most_failures=0)
"""What ends is started again without a pause, however often."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the verify service's process holds, in bytes and numbers, and all processes together on the GPU."""

    resident: int
    descriptors: int
    rings: int
    device: int

    @classmethod
    def of(cls, process: int) -> Holdings:
        folder = Path(f"/proc/{process}")
        resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        rings = (folder / "maps").read_text().count("memfd:slipstream")
        return cls(resident, sum(1 for _ in (folder / "fd").iterdir()), rings, _device_bytes())

    def __str__(self) -> str:
        device = f", {self.device / 2**20:.0f} MiB of GPUs" if self.device else ""
        return f"{self.resident / 2**20:.0f} MiB, {self.descriptors} descriptors, {self.rings} rings{device}"

    def facts(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


@dataclass(slots=True)
class Services:
    """All services of one layout. Whatever ends is started again, as `slipstream serve` does, but at once."""

    cluster: Cluster
    supervisor: Supervisor
    log: list[str] = field(default_factory=list)

    @property
    def grpc(self) -> str:
        """The gateway's gRPC address."""
        return self.cluster.gateway_grpc

    @property
    def verify_pid(self) -> int:
        return self.supervisor.process("verify").pid

    @property
    def draft(self) -> ServiceProcess:
        """The newest process of the draft service."""
        return self.supervisor.process("draft")

    def state(self) -> verify_pb2.GetStateResponse:
        """The verify service's counters."""
        return verify_state(self.cluster.verify_address)

    def verify_cpu_seconds(self) -> float:
        """Processor time that the verify service has taken, which other load of the machine hardly changes."""
        fields = Path(f"/proc/{self.verify_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def holdings(self) -> Holdings:
        return Holdings.of(self.verify_pid)

    def attached(self, pid: int) -> bool:
        """Whether the draft service of that process is attached, to a verify service that is ready."""
        try:
            return any(drafter.process_id == pid for drafter in self.state().drafters)
        except grpc.RpcError:
            return False

    def kill_draft(self) -> None:
        """SIGKILL the draft service and return when another process of it is attached."""
        former = self.draft
        former.signal(signal.SIGKILL)
        self.wait_until(lambda: self.draft is not former, "was not started again")
        self.wait_until(lambda: self.attached(self.draft.pid), "did not attach again")

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
) -> Iterator[Services]:
    """Start all services, wait until they serve and the proposers are attached, and end them afterwards."""
    paths = [str(ROOT / part) for part in ("", "kernels", "protos", "tests")]
    modules = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    cluster = Cluster(
        model,
        draft=draft,
        verify_args=verify,
        draft_args=drafter,
        gateway_args=("--resume-seconds", "240"),
        env={"PYTHONPATH": modules, **environment},
    )
    layout, log = cluster.layout, list[str]()
    commands = (layout.gateway, layout.drafter, layout.verify)
    supervisor = Supervisor(commands, lambda name, line: log.append(f"{name}: {line}"), AT_ONCE)
    supervisor.start(START_SECONDS)
    try:
        wait_attached(cluster.verify_address, layout.proposers, supervisor.process("draft"), START_SECONDS)
        yield Services(cluster, supervisor, log)
    finally:
        supervisor.process("draft").signal(signal.SIGCONT)
        supervisor.drain(10.0)
        supervisor.kill()


def _device_bytes() -> int:
    """Memory in use on all GPUs; 0 where there is none."""
    command = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(int(line) for line in said.split() if line.isdigit()) << 20
