from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging, threading
from verify_service.server.thread_guard import end_with_thread
logging.basicConfig()
end_with_thread("verify-loop")
thread = threading.Thread(target=lambda: 1 / 0, name="{name}")
thread.start()
thread.join()
print("goes on")
"""


@pytest.mark.parametrize(("name", "status"), [("verify-loop", 1), ("other", 0)])
def test_the_process_ends_with_the_thread_it_needs(name, status):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == status
    assert ("goes on" in run.stdout) == (status == 0)
    assert "ZeroDivisionError" in run.stderr
