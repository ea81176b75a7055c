"""A verify service that is started again whenever it ends, as a launcher does, but at once and for ever."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from support.cluster import Cluster, StartupError

POLL_SECONDS = 0.05


class KeptVerify:
    """Keeps the verify service of `cluster` alive. `killed` counts how often it has ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self.killed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(StartupError):  # one that dies just then is started again
            self._cluster.wait_ready()
        self._over.set()
        self._thread.join()
        if self._cluster.processes["verify"].poll() is not None:
            self._cluster.start("verify")
        self._cluster.wait_ready()

    def _keep(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            if self._cluster.processes["verify"].poll() is not None:
                self.killed += 1
                self._cluster.start("verify")
