"""`python -m gateway` as a process of its own; see `support.forked_services`."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from support.forked_services import fork_service

_LISTENING = re.compile(r'listening http=([^\s"]+) grpc=([^\s"]+)')


class GatewayProcess:
    """Starts on free ports and, unless told otherwise, waits until a verify service is ready.

    `context` is that of clients if the gateway speaks TLS. Over a Unix socket `http_url` is unix:PATH.
    """

    def __init__(
        self,
        model: Path,
        verify: str | None,
        *arguments: str,
        wait_ready: bool = True,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._command = [
            sys.executable, "-m", "gateway", "--model", str(model), *(() if verify is None else ("--verify", verify)),
            "--http-port", "0", "--grpc-port", "0", "--loop-monitor-ms", "20", *arguments,
        ]  # fmt: skip
        self._wait_ready = wait_ready
        self._context = context
        self._lines: list[str] = []
        self._started = threading.Event()
        self.http_url = ""
        self.grpc_address = ""

    def __enter__(self) -> Self:
        self.process = fork_service(self._command, os.environ, signal.SIGTERM) or subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
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
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def logs(self) -> str:
        """What it wrote."""
        return "".join(self._lines)

    def wait_ready(self, *, ready: bool = True, seconds: float = 60.0) -> None:
        """Wait until /ready says so, or says the contrary."""
        end = time.monotonic() + seconds
        with self.http_client() as client:
            while (client.get("/ready").status_code == 200) != ready:
                assert time.monotonic() < end, self.logs
                time.sleep(0.02)

    def http_client(self) -> httpx.Client:
        """Of its HTTP API, wherever that is."""
        if self.http_url.startswith("unix:"):
            uds = self.http_url.removeprefix("unix:")
            return httpx.Client(base_url="http://localhost", transport=httpx.HTTPTransport(uds=uds), timeout=60)
        verify = self._context if self._context is not None else True
        return httpx.Client(base_url=self.http_url, verify=verify, timeout=60)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if found := _LISTENING.search(line):
                scheme = "http" if self._context is None else "https"
                http, grpc = found.groups()
                self.http_url = f"{scheme}://127.0.0.1:{http}" if http.isdigit() else http
                self.grpc_address = f"127.0.0.1:{grpc}" if grpc.isdigit() else grpc
                self._started.set()
        self._started.set()
