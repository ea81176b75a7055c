"""Signals of a real process: the first drains, the second quits."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from slipstream.rpc.lifecycle import QUIT_STATUS

PROGRAM = """
import asyncio, sys
from slipstream.rpc.lifecycle import run_until_terminated
from slipstream.rpc.logs import set_up_logging

set_up_logging("sample", "info")

async def drain():
    print("draining", flush=True)
    await asyncio.sleep(float(sys.argv[1]))

async def main():
    asyncio.get_running_loop().call_soon(lambda: print("ready", flush=True))
    await run_until_terminated(drain)

asyncio.run(main())
print("done", flush=True)
"""


@pytest.mark.parametrize("second", [False, True])
def test_first_signal_drains_second_quits(second: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "60" if second else "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "draining\n"
        if second:
            process.send_signal(signal.SIGINT)
        # Not communicate(), which would miss what readline() has buffered.
        rest, log = process.stdout.read(), process.stderr.read()
        process.wait(timeout=20)
    assert process.returncode == (QUIT_STATUS if second else 0)
    assert ("done" in rest) is not second
    assert "sample: SIGTERM: draining" in log
