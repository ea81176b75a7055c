"""`python -m gateway` as a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

_READY = re.compile(r"ready http=(\d+) grpc=(\d+)")


class GatewayProcess:
    """Starts on free ports and, unless told otherwise, waits until a verify service is ready."""

    def __init__(self, model: Path, verify: str, *arguments: str, wait_ready: bool = True) -> None:
        self._command = [
            sys.executable, "-m", "gateway", "--model", str(model), "--verify", verify,
            "--http-port", "0", "--grpc-port", "0", "--loop-monitor-ms", "20", *arguments,
        ]  # fmt: skip
        self._wait_ready = wait_ready
        self._lines: list[str] = []
        self._started = threading.Event()
        self.http_url = ""
        self.grpc_address = ""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._started.wait(120), self.logs
        if self._wait_ready:
            self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def logs(self) -> str:
        """What it wrote to standard error."""
        return "".join(self._lines)

    def wait_ready(self, *, ready: bool = True, seconds: float = 60.0) -> None:
        """Wait until /ready says so, or says the contrary."""
        end = time.monotonic() + seconds
        while (httpx.get(f"{self.http_url}/ready", timeout=60).status_code == 200) != ready:
            assert time.monotonic() < end, self.logs
            time.sleep(0.02)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            if found := _READY.search(line):
                self.http_url = f"http://127.0.0.1:{found[1]}"
                self.grpc_address = f"127.0.0.1:{found[2]}"
                self._started.set()
        self._started.set()
