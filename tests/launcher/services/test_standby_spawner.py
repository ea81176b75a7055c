"""Services whose processes are there before their commands are."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

import psutil
import pytest

from launcher.services.process import ServiceCommand, ServiceProcess, discard_log
from launcher.services.readiness import StartupError
from launcher.services.standby_spawner import StandbySpawner
from slipstream.standby import READY

SERVICE = """
import os, sys
from slipstream.standby import stand_by
stand_by(lambda: print("prepares", os.environ.get("TOLD")))
print("runs", sys.argv[1:], os.getpid(), flush=True)
"""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "stands.py").write_text(SERVICE)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, "TOLD": "secret"}
    return ServiceCommand("stands", (sys.executable, "-m", "stands", "--port", "1"), "", environment)


def ran(spawner, command):
    """What it printed, and its process."""
    process = ServiceProcess(command, spawner)
    assert process.wait(60) == 0
    return process.log().splitlines(), process.pid


def the_one_that_stands_by() -> psutil.Process:
    """Among the children of this process, of which other tests may have left some that are over."""
    alive = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    (ahead,) = [each for each in alive if "stands" in each.cmdline()]
    return ahead


def test_a_service_runs_in_the_process_that_stands_by_once(command):
    spawner, lines = StandbySpawner(), []
    spawner.prepare([command], lambda *line: lines.append(line))
    assert lines == [("stands", "prepares secret"), ("stands", READY)]
    ahead = the_one_that_stands_by()
    other = replace(command, arguments=(*command.arguments[:3], "--port", "2"))
    assert ran(spawner, other) == ([f"runs ['--port', '2'] {ahead.pid}"], ahead.pid)
    (line,), pid = ran(spawner, command)
    assert line == f"runs ['--port', '1'] {pid}" and pid != ahead.pid


def test_a_service_of_another_environment_gets_a_process_of_its_own(command):
    spawner = StandbySpawner()
    spawner.prepare([command], discard_log)
    ahead = the_one_that_stands_by()
    _, pid = ran(spawner, replace(command, environment={**command.environment, "TOLD": "other"}))
    assert pid != ahead.pid
    assert ran(spawner, command)[1] == ahead.pid


def test_one_that_was_lost_while_it_stood_by_is_replaced(command):
    spawner = StandbySpawner()
    spawner.prepare([command], discard_log)
    ahead = the_one_that_stands_by()
    os.kill(ahead.pid, signal.SIGKILL)
    os.waitid(os.P_PID, ahead.pid, os.WEXITED | os.WNOWAIT)
    (line,), pid = ran(spawner, command)
    assert line == f"runs ['--port', '1'] {pid}" and pid != ahead.pid


def test_one_that_cannot_stand_by_says_why(command, tmp_path):
    (tmp_path / "stands.py").write_text("raise SystemExit('no such library')")
    with pytest.raises(StartupError, match="stands ended before it stood by: no such library"):
        StandbySpawner().prepare([command], discard_log)
