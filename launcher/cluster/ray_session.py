"""Ray, as far as this package uses it: joined or started, asked where things are, trusted with a little memory."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.experimental import internal_kv

from launcher.cluster.status import NodeStatus
from launcher.services.commands import split_address
from launcher.services.pidfd_process import PidfdProcess, start_to_stay

CONTROLLER: Final = "controller"
CONNECT_SECONDS: Final = 5.0
START_SECONDS: Final = 120.0
OBJECT_STORE_BYTES: Final = 80_000_000
"""About the least that Ray takes; nothing of ours goes through its object store."""
ANY_PORTS: Final = ("--min-worker-port=0", "--max-worker-port=0")
"""Of Ray's workers: its own range is where services of ours find free ports."""
NODE_ID: Final = "ray.io/node-id"
HEAD: Final = "node:__internal_head__"
"""A resource that the head alone has."""
ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Else whatever a worker starts, the services of a replica too, yields to everything else on its host.
    "RAY_worker_niceness": "0",
    # A node whose raylet is gone counts as dead within 1 s, in place of some 18; one that is busy, after 10.
    "RAY_health_check_initial_delay_ms": "250",
    "RAY_health_check_period_ms": "250",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}
_CURRENT: Final = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir()), "ray", "ray_current_cluster")
_STARTED: Final = "Ray runtime started"
_ADDRESS: Final = re.compile(r"--address='([^']+)'")


class RayError(RuntimeError):
    """Ray cannot be reached or started. The message is one line."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """A process of `ray start` that this program has started. It ends with all that it started, on SIGTERM."""

    process: PidfdProcess
    address: str
    """Of the head, as other nodes and drivers join it."""


def start_ray(
    log: Path, *, address: str = "", port: int = 6379, flags: Sequence[str] = (), added: Mapping[str, str] | None = None
) -> RayNode:
    """Start a head on this host, or with an `address` a node that joins it; RayError with the end of its log.

    `flags` are of `ray start`, `added` joins the environment.
    """
    place = ("--address", address) if address else ("--head", "--port", str(port), "--include-dashboard=false")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *place]
    command += ["--object-store-memory", str(OBJECT_STORE_BYTES), *ANY_PORTS, *flags]
    log.write_text("")
    process = start_to_stay(command, log, {**ENVIRONMENT, **(added or {})})
    deadline = time.monotonic() + START_SECONDS
    while _STARTED not in (text := log.read_text()):
        if process.wait(0.1) or time.monotonic() > deadline:
            process.signal(signal.SIGTERM)
            raise RayError(f"Ray did not start; its log is {log}: {_last_line(text)}")
    found = _ADDRESS.search(text)
    return RayNode(process, address or (found[1] if found else f"127.0.0.1:{port}"))


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "(no output)")


def connect(address: str, namespace: str) -> None:
    """Join the Ray cluster whose head is at host:port, empty: that of RAY_ADDRESS, or of this host.

    RayError where there is none: Ray itself would try for minutes.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    address = address or os.environ.get("RAY_ADDRESS", "") or _address_here()
    try:
        socket.create_connection(split_address(address), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise RayError(f"no Ray cluster answers at {address or 'this host'}: {error}") from error
    try:
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RayError(f"no Ray cluster answers at {address!r}: {_last_line(str(error))}") from error


def _address_here() -> str:
    """Of the Ray that was started last on this host, if any."""
    try:
        return _CURRENT.read_text("utf-8").strip()
    except OSError:
        return ""


def own_place() -> tuple[str, str, tuple[str, ...]]:
    """Of the process of an actor: the node's id, its address, and the GPUs that are set aside for it."""
    context = ray.get_runtime_context()
    return context.get_node_id(), ray.util.get_node_ip_address(), tuple(context.get_accelerator_ids().get("GPU", ()))


def nodes(off: set[str]) -> tuple[NodeStatus, ...]:
    """All nodes that are alive."""
    return tuple(
        NodeStatus(
            node=each["NodeID"],
            host=each["NodeManagerAddress"],
            alive=each["Alive"],
            cpus=each["Resources"].get("CPU", 0.0),
            gpus=each["Resources"].get("GPU", 0.0),
            off=each["NodeID"] in off,
        )
        for each in ray.nodes()
        if each["Alive"]
    )


def recall(name: str, what: str) -> dict[str, Any]:
    """What was remembered in the head's memory; empty where nothing was."""
    found = internal_kv._internal_kv_get(_key(name, what))  # noqa: SLF001  # Ray has no public form of it
    return json.loads(found) if found else {}


def remember(name: str, what: str, value: Mapping[str, Any]) -> None:
    """Keep it for as long as the head lives."""
    internal_kv._internal_kv_put(_key(name, what), json.dumps(value).encode(), overwrite=True)  # noqa: SLF001  # as above


def forget(name: str, what: str) -> None:
    """Keep it no longer."""
    internal_kv._internal_kv_del(_key(name, what))  # noqa: SLF001  # as above


def _key(name: str, what: str) -> bytes:
    return f"slipstream/{name}/{what}".encode()
