"""Child processes end with the process that started them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from launcher.services.process import PARENT_DEATH_SIGNAL, ServiceCommand, ServiceProcess, Spawner

STARTER = """
import signal, sys, time
from launcher.services.process import ServiceCommand, ServiceProcess, Spawner
child = ServiceProcess(ServiceCommand("child", (sys.executable, "-c", "import time; time.sleep(600)"), ""), Spawner())
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")
def test_children_end_when_their_launcher_is_killed():
    launcher = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    with launcher:
        child = psutil.Process(int(launcher.stdout.readline()))
        wait_for_exec(child)
        launcher.kill()
    deadline = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")
def test_children_that_ignore_sigterm_end_where_sigkill_is_their_death_signal():
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    starter = STARTER.replace('"import time; time.sleep(600)"', repr(deaf)).replace(
        "Spawner())", "Spawner(signal.SIGKILL))"
    )
    starter = starter.replace("print(child", "time.sleep(0.01)\nwhile 'deaf' not in child.log(): pass\nprint(child")
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as launcher:
        child = psutil.Process(int(launcher.stdout.readline()))
        launcher.kill()
    _, alive = psutil.wait_procs([child], timeout=60)
    assert not alive


def test_a_child_outlives_every_reference_to_its_spawner():
    child = ServiceProcess(
        ServiceCommand("child", (sys.executable, "-c", "import time; time.sleep(600)"), ""), Spawner()
    )
    try:
        # The kernel's leash is on the thread that started the child.
        time.sleep(0.2)
        assert any(thread.name.startswith("spawner") for thread in threading.enumerate())
        wait_for_exec(psutil.Process(child.pid))
        assert child.running
    finally:
        child.kill()


def wait_for_exec(child: psutil.Process) -> None:
    deadline = time.monotonic() + 60
    while any(PARENT_DEATH_SIGNAL.name in part for part in child.cmdline()) and time.monotonic() < deadline:
        time.sleep(0.02)


def test_log_is_kept_and_handed_on():
    lines: list[tuple[str, str]] = []
    code = "import sys; print('out'); print('error', file=sys.stderr)"
    process = ServiceProcess(
        ServiceCommand("talker", (sys.executable, "-c", code), ""), Spawner(), lambda *line: lines.append(line)
    )
    assert process.wait(60) == 0
    assert process.log().splitlines() == ["out", "error"]
    assert lines == [("talker", "out"), ("talker", "error")]
    assert process.describe_end() == "exited with status 0"


def test_an_end_by_a_signal_without_a_name_is_described_too():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 1)"
    process = ServiceProcess(ServiceCommand("odd", (sys.executable, "-c", code), ""), Spawner())
    process.wait(60)
    assert process.describe_end() == f"was ended by signal {signal.SIGRTMIN + 1}"


def test_stop_kills_what_ignores_sigterm():
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    process = ServiceProcess(ServiceCommand("deaf", (sys.executable, "-c", code), ""), Spawner())
    while "deaf" not in process.log():
        time.sleep(0.01)
    process.stop(grace=0.1)
    assert process.describe_end() == f"was ended by {signal.SIGKILL.name}"
