"""The replicas as actors of Ray: created, asked, awaited and killed. What they answer comes as events."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import ActorUnavailableError, RayError

from launcher.cluster.fleet import Start
from launcher.cluster.ray_session import NODE_ID
from launcher.cluster.replica import Place, Replica, Started
from launcher.cluster.replica_spec import ReplicaSpec

STOP_SECONDS: Final = 10.0
"""What the services of a replica that is empty, or has had its time, get to end."""
KILL_SECONDS: Final = STOP_SECONDS + 5.0
WAIT_SECONDS: Final = 60.0
"""Of one question whether a replica has given up: each holds a thread of the actor."""
PROGRESS_SECONDS: Final = 1.0
THREADS: Final = 16
PREFIX: Final = "replica-"


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica's process runs."""

    number: int
    place: Place


@dataclass(frozen=True, slots=True)
class Serves:
    """A replica's services serve."""

    number: int
    started: Started


@dataclass(frozen=True, slots=True)
class Gone:
    """A replica is no more; `reason` is empty where it was told to end."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tells:
    """The newest line of a starting replica's log."""

    number: int
    line: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A replica stands by."""

    number: int


Event = Placed | Prepared | Serves | Gone | Tells


class ReplicaActors:
    """All of one namespace. Used by one thread of the controller."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, tuple[int, str]] = {}
        """By reference of a pending answer: the replica, and the method."""
        self._ending: dict[int, float] = {}
        """Those told to end, and when they are killed."""
        self._progress_at: dict[int, float] = {}
        self._standing: dict[int, str] = {}
        """Those that are to stand by, and their hosts once they are known."""

    def find(self, standing: Collection[int]) -> Iterator[tuple[int, int]]:
        """Numbers and generations of those that a former controller has left; these were to stand by."""
        for name in ray.util.list_named_actors():
            if name.startswith(PREFIX):
                number, generation = map(int, name.removeprefix(PREFIX).split("-"))
                self._actors[number] = ray.get_actor(name, namespace=self._namespace)
                if number in standing:
                    self._standing[number] = ""
                self._ask(number, "place")
                yield number, generation

    def start(self, asked: Start, spec: ReplicaSpec) -> None:
        """Create one, which Ray places on a node that has room, is not `off`, and if it can be not `taken`."""
        options: dict[str, Any] = {}
        if asked.off or asked.taken:
            options["label_selector"] = _outside(asked.off | asked.taken)
        if asked.taken:
            options["fallback_strategy"] = [{"label_selector": _outside(asked.off)}]
        number = asked.number
        if asked.standby:
            self._standing[number] = ""
        self._actors[number] = (
            ray.remote(Replica)
            .options(
                name=f"{PREFIX}{number}-{asked.generation}",
                namespace=self._namespace,
                lifetime="detached",
                max_restarts=0,
                max_concurrency=THREADS,
                num_cpus=spec.cpus,
                num_gpus=spec.gpus,
                scheduling_strategy="DEFAULT" if options else "SPREAD",
                **options,
            )
            .remote(number, spec)
        )
        self._ask(number, "place")

    def go(self, number: int) -> None:
        """Have one that stands by start. It is waited for from when it has prepared."""
        self._ask(number, "start", self._standing.pop(number))

    def stop(self, number: int, *, placed: bool) -> None:
        """Have one end, at once if it has no place yet."""
        self._ending[number] = time.monotonic() + (KILL_SECONDS if placed else 0.0)
        if placed:
            self._ask(number, "stop", STOP_SECONDS)

    def ask_progress(self, number: int) -> None:
        """Ask a starting one for the newest line of its log, as often as it is worth while."""
        now = time.monotonic()
        if now >= self._progress_at.get(number, 0.0):
            self._progress_at[number] = now + PROGRESS_SECONDS
            self._ask(number, "progress")

    def events(self, seconds: float) -> list[Event]:
        """What has happened, once something has, or so many seconds have passed."""
        found: list[Event] = []
        if self._calls:
            done, _ = ray.wait(list(self._calls), num_returns=1, timeout=seconds)
            found = [event for ref in done if (event := self._take(ref)) is not None]
        else:
            time.sleep(seconds)
        now = time.monotonic()
        for number in [number for number, at in self._ending.items() if now >= at]:
            found.append(self._end(number, ""))
        return found

    def _ask(self, number: int, method: str, *arguments: Any) -> None:
        ref = getattr(self._actors[number], method).remote(*arguments)
        self._calls[ref] = (number, method)

    def _take(self, ref: Any) -> Event | None:
        number, method = self._calls.pop(ref)
        if number not in self._actors:
            return None
        try:
            answer = ray.get(ref)
        except ActorUnavailableError:  # for the moment: Ray says so otherwise once it is dead
            again: dict[str, tuple[Any, ...]] = {
                "place": (),
                "prepare": (self._standing.get(number, ""),),
                "wait": (WAIT_SECONDS,),
                "stop": (STOP_SECONDS,),
            }
            if method in again:
                self._ask(number, method, *again[method])
            return None
        except RayError as error:
            return self._end(number, "" if number in self._ending else _one_line(error))
        return self._answered(number, method, answer)

    def _answered(self, number: int, method: str, answer: Any) -> Event | None:
        match method:
            case "place":
                if number in self._standing:
                    self._standing[number] = answer.host
                    self._ask(number, "prepare", answer.host)
                else:
                    self._ask(number, "start", answer.host)
                    self._ask(number, "wait", WAIT_SECONDS)
                return Placed(number, answer)
            case "prepare" if answer:
                return self._end(number, answer)
            case "prepare":
                self._ask(number, "wait", WAIT_SECONDS)
                return Prepared(number)
            case "start":
                return self._end(number, answer.error) if answer.error else Serves(number, answer)
            case "wait" if answer and number not in self._ending:
                return self._end(number, answer)
            case "wait":
                self._ask(number, "wait", WAIT_SECONDS)
            case "stop":
                return self._end(number, "")
            case "progress":
                return Tells(number, answer)
        return None

    def _end(self, number: int, reason: str) -> Gone:
        """Kill the process, with which its services go; nothing more is heard of it."""
        ray.kill(self._actors.pop(number))
        self._ending.pop(number, None)
        self._progress_at.pop(number, None)
        self._standing.pop(number, None)
        self._calls = {ref: call for ref, call in self._calls.items() if call[0] != number}
        return Gone(number, reason)


def _outside(avoided: frozenset[str]) -> dict[str, str]:
    """Selects all nodes but these."""
    return {NODE_ID: f"!in({','.join(sorted(avoided))})"} if avoided else {}


def _one_line(error: Exception) -> str:
    """Of what Ray says of a dead actor in many: the first and the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("The actor died because")]
    return (causes or lines or [type(error).__name__])[0]
