"""What the subcommands of `slipstream cluster` do: the driver's side."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError
from ray.exceptions import RayError as RayFailure

from launcher.cluster import ray_session
from launcher.cluster.autoscaler import Scaling
from launcher.cluster.controller import MEMORY, Controller
from launcher.cluster.fleet import MOST_FAILURES
from launcher.cluster.ray_session import CONTROLLER, HEAD, RayError, RayNode, connect, forget, recall, remember
from launcher.cluster.replica_spec import ReplicaSpec
from launcher.cluster.status import ClusterStatus, ReplicaStatus
from launcher.services.pidfd_process import PidfdProcess

ANSWER_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.3
OWN_RAY: Final = "ray"
"""Under which the process of a Ray that `up` started is remembered."""
RAY_STOP_SECONDS: Final = 20.0
CONTROLLER_THREADS: Final = 16

Tell = Callable[[str], None]
"""Is given one line of progress."""


class ClusterError(RuntimeError):
    """There is no such cluster, or it does not do what was asked. The message is one line."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster: its name, and the address of its Ray; without one that of this host."""

    name: str
    address: str = ""


def up(where: Where, spec: ReplicaSpec, scaling: Scaling, *, port: int, ray_port: int, seconds: float, tell: Tell
       ) -> ClusterStatus:  # fmt: skip
    """Start the cluster, or have a running one take this spec, and return once it serves so.

    ClusterError after so many seconds, or where starts fail again and again; what runs goes on running.
    """
    _join(where, ray_port, tell)
    controller: Any = (
        ray.remote(Controller)
        .options(
            name=CONTROLLER,
            namespace=where.name,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0,
            resources={HEAD: 0.001},
            max_concurrency=CONTROLLER_THREADS,
            get_if_exists=True,
        )
        .remote(where.name, port, spec)
    )
    _ask(controller.apply.remote(spec, scaling))
    return _settle(controller, seconds, tell)


def status(where: Where) -> ClusterStatus:
    """What there is."""
    return _status(_controller(where))


def scale(where: Where, least: int, most: int, *, seconds: float, tell: Tell) -> ClusterStatus:
    """Want so many replicas, and wait until there are."""
    controller = _controller(where)
    _ask(controller.rescale.remote(replace(_ask(controller.scaling.remote()), least=least, most=most)))
    return _settle(controller, seconds, tell)


def drain(where: Where, what: str, *, node: bool, seconds: float, tell: Tell) -> ClusterStatus:
    """Empty a replica, or all of a node, which gets none from then on; others take their place."""
    controller = _controller(where)
    if node:
        if not _ask(controller.clear.remote(what)):
            raise ClusterError(f"no node, or more than one, has an id that begins with {what!r}")
    elif not what.isdecimal() or not _ask(controller.release.remote(int(what))):
        raise ClusterError(f"there is no replica {what!r}")
    return _settle(controller, seconds, tell)


def down(where: Where, *, drain_seconds: float, tell: Tell) -> None:
    """Drain all replicas, end the controller, and the Ray that `up` started."""
    controller = _controller(where)
    _ask(controller.close.remote(drain_seconds))
    told = _Progress(tell)
    while (found := _status(controller)).replicas:
        told(found)
        time.sleep(POLL_SECONDS)
    forget(where.name, MEMORY)
    ray.kill(controller)
    own = recall(where.name, OWN_RAY)
    forget(where.name, OWN_RAY)
    ray.shutdown()
    if own:
        _stop_ray(own["process_id"], tell)


def _join(where: Where, ray_port: int, tell: Tell) -> None:
    """Join the Ray that was named, or runs here; start one where there is none."""
    if where.address:
        connect(where.address, where.name)
        return
    try:
        connect("", where.name)
    except RayError:
        log = Path(tempfile.gettempdir()) / f"slipstream-ray-{ray_port}.log"
        tell(f"no Ray runs here; starting one on port {ray_port}, log {log}")
        started = ray_session.start_ray(log, port=ray_port)
        connect(started.address, where.name)
        remember(where.name, OWN_RAY, {"process_id": started.process.pid})
        tell(f"Ray serves at {started.address}; more hosts join by: ray start --address={started.address}")
    else:
        tell("joined the Ray that runs here")


def _stop_ray(process_id: int, tell: Tell) -> None:
    with suppress(OSError), PidfdProcess(process_id) as process:
        if "ray.scripts.scripts" in process.arguments:
            process.signal(signal.SIGTERM)
            tell("Ray has ended" if process.wait(RAY_STOP_SECONDS) else "Ray takes long to end")


def _controller(where: Where) -> Any:
    try:
        connect(where.address, where.name)
        return ray.get_actor(CONTROLLER, namespace=where.name)
    except (RayError, ValueError) as error:
        reason = str(error) if isinstance(error, RayError) else f"Ray runs, but no cluster named {where.name!r}"
        raise ClusterError(f"{reason}; start one with: slipstream cluster up") from error


def _ask(ref: Any) -> Any:
    try:
        return ray.get(ref, timeout=ANSWER_SECONDS)
    except GetTimeoutError as error:
        raise ClusterError(f"the controller does not answer within {ANSWER_SECONDS:g} s") from error
    except RayFailure as error:
        raise ClusterError(f"the controller failed: {str(error).strip().splitlines()[-1]}") from error


def _status(controller: Any) -> ClusterStatus:
    found: ClusterStatus = _ask(controller.status.remote())
    return found


def _settle(controller: Any, seconds: float, tell: Tell) -> ClusterStatus:
    """Wait until what is wanted is there."""
    deadline = time.monotonic() + seconds
    told = _Progress(tell)
    while True:
        found = _status(controller)
        told(found)
        if found.settled and not found.directory_error:
            return found
        if found.failures >= MOST_FAILURES and not found.ready:
            raise ClusterError(f"replicas do not start: {found.reason}")
        if time.monotonic() > deadline:
            waiting = found.directory_error or f"{found.ready} of {found.wanted} replicas serve"
            raise ClusterError(f"not there within {seconds:g} s: {waiting}; it goes on in the background")
        time.sleep(POLL_SECONDS)


class _Progress:
    """Tells of each change between two looks, in one line each."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lines: dict[int, str] = {}
        self._notes: tuple[str, ...] | None = None

    def __call__(self, found: ClusterStatus) -> None:
        lines = {each.number: _line(each) for each in found.replicas}
        for number, line in lines.items():
            if self._lines.get(number) != line:
                self._tell(f"replica {number}: {line}")
        for number in self._lines.keys() - lines.keys():
            self._tell(f"replica {number}: gone")
        for note in found.notes[len(self._notes) :] if self._notes is not None else ():
            self._tell(note)
        self._lines, self._notes = lines, found.notes


def _line(replica: ReplicaStatus) -> str:
    place = f" on node {replica.node[:8]}" if replica.node else ", waits for a place"
    match replica.state:
        case "starting":
            return f"starts{place}{f'; {replica.progress}' if replica.progress else ''}"
        case "standby":
            return f"stands by{place}"
        case "ready":
            return f"serves at {replica.address}{place}"
        case state:
            return state


def print_line(line: str) -> None:
    """Tell of progress on standard error, where it disturbs nobody who reads the output."""
    print(line, file=sys.stderr, flush=True)


__all__ = ["ClusterError", "RayError", "RayNode", "Where", "down", "drain", "print_line", "scale", "status", "up"]
