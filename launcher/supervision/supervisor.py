"""Keeps services running: starts them, restarts those that end or hang, and drains them in order."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.services.process import LogSink, ServiceCommand, ServiceProcess, Spawner
from launcher.services.readiness import wait_serving
from launcher.supervision.liveness_probe import PROBE_SECONDS, LivenessProbe

WATCH_SECONDS = 0.1
"""Longest time until an ended service is noticed."""


MOST_FAILURES = 10
"""Failures in a row after which an essential service is given up."""
HANG_SECONDS = 30.0
"""Silence after which a service counts as hanging."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Exponential back-off between restarts of a service.

    first_seconds, longest_seconds: back-off after the first failure, which doubles with each; its limit.
    good_run_seconds: the failure count resets after so much uptime, start-up excluded (the time that the first start
        of all services took).
    max_failures: failures in a row after which an essential service is given up; 0: never.
    hang_seconds: a service that answers no liveness probe for so long is killed, later by the start-up time while it
        starts; 0: never.
    """

    first_seconds: float = 0.5
    longest_seconds: float = 10.0
    good_run_seconds: float = 30.0
    max_failures: int = MOST_FAILURES
    hang_seconds: float = HANG_SECONDS

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after `failures` failures in a row."""
        return min(self.longest_seconds, self.first_seconds * 2.0 ** min(30, max(0, failures - 1)))


class _Watched:
    """One service and its restarts.

    restart_at: when to start it again (time.monotonic(), seconds); None while it runs.
    dismissed: it ended with status 0, as somebody else asked it to.
    """

    __slots__ = ("command", "dismissed", "failures", "probe", "process", "restart_at", "started")

    def __init__(self, command: ServiceCommand, process: ServiceProcess) -> None:
        self.command = command
        self.process = process
        self.probe = LivenessProbe(process)
        self.started = time.monotonic()
        self.failures = 0
        self.restart_at: float | None = None
        self.dismissed = False


class Supervisor:
    """Runs services given in the order in which they drain: those that others depend on come last.

    `start` refuses a set that does not come up; from then on whatever ends is started again until `drain` or `kill`.
    Not so a service that is not essential and ends with status 0: it was asked to, as another one does its work.
    `on_given_up` is called from another thread with the name of an essential service that ended too often; by then
    nothing is started again any more. `spawner` starts the services, and settles what they get when
    this process is gone.
    """

    def __init__(
        self,
        commands: Sequence[ServiceCommand],
        sink: LogSink,
        policy: RestartPolicy | None = None,
        on_given_up: Callable[[str], None] = lambda name: None,
        spawner: Spawner | None = None,
    ) -> None:
        self._commands = tuple(commands)
        self._sink = sink
        self._policy = policy or RestartPolicy()
        self._on_given_up = on_given_up
        self._spawner = spawner or Spawner()
        self._watched: list[_Watched] = []
        self._start_seconds = 0.0
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._listener = threading.Thread(target=self._listen, name="liveness-probe", daemon=True)
        self._lock = threading.Lock()

    def start(self, timeout: float) -> None:
        """Start all services together and wait until they serve; StartupError, with all of them ended, otherwise."""
        begun = time.monotonic()
        try:
            self._watched.extend(_Watched(command, self._spawn(command)) for command in self._commands)
            wait_serving([watched.process for watched in self._watched], begun + timeout)
        except BaseException:
            self.kill()
            raise
        self._start_seconds = time.monotonic() - begun
        self._watcher.start()
        if self._policy.hang_seconds > 0:
            self._listener.start()

    def process(self, name: str) -> ServiceProcess:
        """The newest process of a service."""
        return next(watched.process for watched in self._watched if watched.command.name == name)

    def drain(self, grace: float) -> None:
        """SIGTERM the services one after the other, each of them given what is left of `grace` seconds."""
        self._stopping.set()
        deadline = time.monotonic() + grace
        with self._lock:
            for watched in self._watched:
                watched.process.stop(max(1.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """SIGKILL all services now, also while another thread drains."""
        self._stopping.set()
        for watched in self._watched:
            watched.process.signal(signal.SIGKILL)
        for watched in self._watched:
            watched.process.wait()

    def _spawn(self, command: ServiceCommand) -> ServiceProcess:
        return ServiceProcess(command, self._spawner, self._sink)

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_SECONDS):
            with self._lock:
                for watched in self._watched:
                    if not self._stopping.is_set():
                        self._tend(watched)

    def _listen(self) -> None:
        """Kill services that hang; the watcher starts them again."""
        limit = self._policy.hang_seconds
        while not self._stopping.is_set():
            for watched in self._watched:
                if watched.probe.process is not watched.process:
                    watched.probe.close()
                    watched.probe = LivenessProbe(watched.process)
                if watched.probe.failed(limit, self._start_seconds) and not self._stopping.is_set():
                    self._sink(watched.command.name, "does not answer and is killed")
                    watched.probe.process.signal(signal.SIGKILL)
            self._stopping.wait(min(PROBE_SECONDS, limit / 4))
        for watched in self._watched:
            watched.probe.close()

    def _tend(self, watched: _Watched) -> None:
        now = time.monotonic()
        if watched.restart_at is None:
            if watched.process.running or watched.dismissed:
                return
            if not watched.command.essential and watched.process.wait() == 0:
                watched.dismissed = True
                self._sink(watched.command.name, "ended as it was asked to; it is not started again")
                return
            if now - watched.started >= self._start_seconds + self._policy.good_run_seconds:
                watched.failures = 0
            self._postpone(watched, watched.process.describe_end())
        elif now >= watched.restart_at:
            try:
                watched.process = self._spawn(watched.command)
            except OSError as error:
                self._postpone(watched, f"could not be started: {error.strerror or error}")
                return
            watched.started, watched.restart_at = now, None
            if self._stopping.is_set():  # `kill` may have passed while this one started
                watched.process.signal(signal.SIGKILL)

    def _postpone(self, watched: _Watched, failure: str) -> None:
        watched.failures += 1
        name, most = watched.command.name, self._policy.max_failures
        if watched.command.essential and 0 < most <= watched.failures:
            self._stopping.set()
            self._sink(name, f"{failure}; given up after {most} short runs in a row")
            self._on_given_up(name)
            return
        delay = self._policy.delay(watched.failures)
        watched.restart_at = time.monotonic() + delay
        self._sink(name, f"{failure}; starts again in {delay:.1f} s")
