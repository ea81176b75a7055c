"""Further draft services beside a cluster's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from launcher.services.process import ServiceCommand, ServiceProcess
from launcher.supervision.cluster import START_SECONDS, STOP_SECONDS, Cluster
from support.ask import state, wait_until
from support.cluster import free_ports
from support.forked_services import ForkingSpawner

ROOT = Path(__file__).parents[2]
PYTHON_PATH = os.pathsep.join((*map(str, (ROOT, ROOT / "kernels", ROOT / "protos", ROOT / "tests")),))
"""With it services load proposers from tests."""


@contextmanager
def draft_service(cluster: Cluster, *proposers: str, arguments: Sequence[str] = ()) -> Iterator[ServiceProcess]:
    """A draft service of its own that is attached to the cluster's verify service; SIGTERM at the end."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = (sys.executable, "-m", "draft_service", "--verify", cluster.verify_address, "--port", str(port))
    hosted = tuple(part for proposer in proposers for part in ("--proposers", proposer))
    service = ServiceProcess(
        ServiceCommand("second", (*command, *hosted, *arguments), address, {"PYTHONPATH": PYTHON_PATH}),
        ForkingSpawner(),
    )

    def attached():
        assert service.running, f"{service.describe_end()}\n{service.log()}"
        return bool(drafters_at(cluster, address))

    try:
        wait_until(attached, service.log, START_SECONDS)
        yield service
    finally:
        service.stop(STOP_SECONDS)


def drafters_at(cluster: Cluster, address: str):
    """The counters of the draft service at this address, one entry a proposer."""
    return [drafter for drafter in state(cluster).drafters if drafter.address == address]
