"""Supervision of real processes: small gRPC servers that report health."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.services.process import ServiceCommand
from launcher.services.readiness import is_serving
from launcher.supervision.supervisor import RestartPolicy, Supervisor
from support.cluster import StartupError, free_ports

SERVER = Path(__file__).parents[1] / "health_server.py"
LOADING = """
import os, runpy, sys, time
time.sleep(float(os.environ["LOADING"]))
if os.environ["BROKEN"]:
    sys.exit("no memory is left")
del sys.argv[0]
runpy.run_path(sys.argv[0])
"""
QUICK = RestartPolicy(first_seconds=0.05, longest_seconds=0.2, good_run_seconds=60.0)


def server(name: str, port: int, *, life: float = 600.0, drain: float = 0.0) -> ServiceCommand:
    return ServiceCommand(name, (sys.executable, str(SERVER), str(port), str(life), str(drain)), f"127.0.0.1:{port}")


class Lines:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    def index(self, name: str, line: str) -> int:
        return self.lines.index((name, line))


def wait_until(condition, seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_restarts_what_was_killed_on_the_same_port():
    (port,) = free_ports(1)
    lines = Lines()
    supervisor = Supervisor([server("one", port)], lines, QUICK)
    supervisor.start(timeout=100)
    try:
        first = supervisor.process("one").pid
        supervisor.process("one").signal(signal.SIGKILL)
        wait_until(lambda: supervisor.process("one").pid != first and is_serving(f"127.0.0.1:{port}"))
        assert any("ended by SIGKILL; starts again in" in line for _, line in lines.lines)
    finally:
        supervisor.kill()
    assert not supervisor.process("one").running


def test_restarts_what_hangs():
    ports = free_ports(2)
    lines = Lines()
    commands = [replace(server("one", ports[0]), essential=False), server("two", ports[1])]
    supervisor = Supervisor(commands, lines, replace(QUICK, hang_seconds=2.0))
    supervisor.start(timeout=100)
    try:
        first = supervisor.process("one")
        first.signal(signal.SIGSTOP)
        wait_until(lambda: supervisor.process("one") is not first and is_serving(f"127.0.0.1:{ports[0]}"))
        lines.index("one", "does not answer and is killed")
        assert any("ended by SIGKILL; starts again in" in line for _, line in lines.lines)
    finally:
        supervisor.kill()


def test_a_service_that_cannot_be_spawned_is_tried_again():
    (port,) = free_ports(1)
    lines = Lines()
    environment = {"PADDING": ""}
    command = replace(server("one", port), environment=environment)
    supervisor = Supervisor([command], lines, QUICK)
    supervisor.start(timeout=100)
    try:
        environment["PADDING"] = "x" * (1 << 20)  # more than the kernel passes on
        supervisor.process("one").signal(signal.SIGKILL)
        wait_until(lambda: sum("could not be started" in line for _, line in lines.lines) >= 2)
        environment["PADDING"] = ""
        wait_until(lambda: is_serving(f"127.0.0.1:{port}"))
        supervisor.drain(grace=60)
    finally:
        supervisor.kill()


def test_a_service_that_nobody_depends_on_may_be_asked_to_end():
    ports = free_ports(2)
    lines = Lines()
    commands = [replace(server("one", ports[0]), essential=False), server("two", ports[1])]
    supervisor = Supervisor(commands, lines, QUICK)
    supervisor.start(timeout=100)
    try:
        asked = [supervisor.process(name) for name in ("one", "two")]
        for process in asked:
            process.signal(signal.SIGTERM)
        wait_until(lambda: any(name == "one" and "not started again" in line for name, line in lines.lines))
        wait_until(lambda: supervisor.process("two") is not asked[1] and is_serving(f"127.0.0.1:{ports[1]}"))
        assert supervisor.process("one") is asked[0]
    finally:
        supervisor.kill()


@pytest.mark.parametrize(("essential", "most"), [(True, 2), (False, 2), (True, 0)])
def test_only_an_essential_service_is_given_up(essential, most):
    (port,) = free_ports(1)
    lines, given_up = Lines(), []
    command = replace(server("one", port), essential=essential)
    supervisor = Supervisor([command], lines, replace(QUICK, max_failures=most), given_up.append)
    supervisor.start(timeout=100)
    try:
        for _ in range(3):
            former = supervisor.process("one")
            former.signal(signal.SIGKILL)
            wait_until(lambda former=former: supervisor.process("one") is not former or given_up)
        assert given_up == (["one"] if essential and most else [])
        assert any("given up after 2 short runs" in line for _, line in lines.lines) == bool(given_up)
    finally:
        supervisor.kill()


def test_a_service_that_ends_while_it_loads_has_run_short_however_long_that_takes():
    (port,) = free_ports(1)
    given_up = []
    environment = {"LOADING": "2", "BROKEN": ""}
    command = replace(server("one", port), environment=environment)
    command = replace(command, arguments=(sys.executable, "-c", LOADING, *command.arguments[1:]))
    policy = replace(QUICK, good_run_seconds=0.25, max_failures=2)
    supervisor = Supervisor([command], Lines(), policy, given_up.append)
    supervisor.start(timeout=100)
    try:
        environment |= {"LOADING": "0.5", "BROKEN": "yes"}
        supervisor.process("one").signal(signal.SIGKILL)
        wait_until(lambda: given_up)
    finally:
        supervisor.kill()


def test_drains_in_the_given_order():
    ports = free_ports(2)
    lines = Lines()
    commands = [server("front", ports[0], drain=0.3), server("back", ports[1])]
    supervisor = Supervisor(commands, lines, QUICK)
    supervisor.start(timeout=100)
    supervisor.drain(grace=60)
    assert lines.index("front", "drained") < lines.index("back", "draining")
    assert [supervisor.process(name).wait() for name in ("front", "back")] == [0, 0]


def test_kill_cuts_a_drain_short():
    (port,) = free_ports(1)
    lines = Lines()
    supervisor = Supervisor([server("slow", port, drain=600.0)], lines, QUICK)
    supervisor.start(timeout=100)
    drain = threading.Thread(target=supervisor.drain, args=(600.0,))
    drain.start()
    wait_until(lambda: ("slow", "draining") in lines.lines)
    supervisor.kill()
    drain.join(timeout=30)
    assert not drain.is_alive()
    assert supervisor.process("slow").wait() == -signal.SIGKILL


def test_a_service_that_never_serves_is_an_error_with_its_log():
    ports = free_ports(2)
    broken = ServiceCommand(
        "broken", (sys.executable, "-c", "print('no weights here'); exit(4)"), f"127.0.0.1:{ports[1]}"
    )
    supervisor = Supervisor([server("fine", ports[0]), broken], Lines(), QUICK)
    with pytest.raises(StartupError, match=r"(?s)broken exited with status 4 before it was ready.*no weights here"):
        supervisor.start(timeout=100)
    assert not supervisor.process("fine").running


def test_delays_double_up_to_the_longest():
    policy = RestartPolicy(first_seconds=0.5, longest_seconds=10.0)
    assert [policy.delay(failures) for failures in (1, 2, 3, 10)] == [0.5, 1.0, 2.0, 10.0]
