"""Brings the boundary benchmark's proposer to a draft link: beside verify in this process, or as a draft service."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.boundary.link import DraftLink, attached_here
from benchmarks.boundary.plan import PROPOSER, DraftPlan, DraftReport
from benchmarks.boundary.settings import BEHIND, Measured, Setting
from benchmarks.boundary.timed_head import spec_of
from benchmarks.lib.link_server import LinkServer, link_servers
from benchmarks.lib.repository import ROOT
from slipstream_kernels.models.checkpoint.model_config import ModelConfig

STOP_SECONDS = 10.0


class DrafterError(RuntimeError):
    """A draft service that did not come, or ended without a report."""


class Drafters:
    """The drafters of a place's settings. Draft services run from the start, and attach when it is their turn."""

    def __init__(self, measured: Measured, config: ModelConfig) -> None:
        """Use `drafters`."""
        self._measured = measured
        self._config = config
        self._folder = Path(measured.folder)
        self._services: dict[Setting, tuple[LinkServer, subprocess.Popen[bytes]]] = {}

    def start(self, servers: Sequence[LinkServer]) -> None:
        """Start the draft service of each setting that has one; each dials a server of its own."""
        apart = [setting for setting in self._measured.settings if setting.own_process]
        for setting, server in zip(apart, servers, strict=True):
            command: tuple[str, ...] = (
                *(sys.executable, "-m", "draft_service", "--verify", f"127.0.0.1:{server.port}", "--port", "0"),
                *("--proposers", self._write_plan(setting), "--device", self._measured.draft_device),
                *("--transports", setting.transport, "--log-level", "warning"),
            )
            if not setting.spins:
                command = (*command, "--spin-ms", "0")
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._services[setting] = server, subprocess.Popen(command, cwd=ROOT, env=environment)

    def stop(self) -> None:
        """End what still runs."""
        for _, process in self._services.values():
            process.kill()
            process.wait()

    @contextmanager
    def attached(self, setting: Setting, link: DraftLink) -> Iterator[None]:
        """The setting's drafter is attached to the link. Its report is there afterwards. Raises DrafterError."""
        report = self._report(setting)
        report.unlink(missing_ok=True)
        with self._behind(setting, link) if setting.own_process else self._beside(setting, link):
            yield
        if not report.exists():
            raise DrafterError(f"the drafter of {setting.name} left no report")

    def report(self, setting: Setting) -> DraftReport:
        """What the setting's drafter did."""
        return DraftReport.read(self._report(setting))

    @contextmanager
    def _beside(self, setting: Setting, link: DraftLink) -> Iterator[None]:
        with attached_here(link, self._write_plan(setting), self._measured.draft_device):
            yield

    @contextmanager
    def _behind(self, setting: Setting, link: DraftLink) -> Iterator[None]:
        server, process = self._services[setting]
        with server.serve(link):
            limit = time.monotonic() + self._measured.attach_seconds
            while not link.known(PROPOSER):
                if process.poll() is not None:
                    raise DrafterError(f"the draft service ended with status {process.returncode}")
                if time.monotonic() > limit:
                    raise DrafterError(f"the draft service did not attach by {setting.transport}")
                time.sleep(0.01)
            yield
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise DrafterError("the draft service did not end") from error

    def _write_plan(self, setting: Setting) -> str:
        if setting.mode == BEHIND:
            head = self._measured.head
            return spec_of(head, self._report(setting), rows=setting.rows, depth=setting.depth)
        layers = self._config.num_layers
        places = tuple(sorted({min(2, layers), layers // 2, max(0, layers - 3)})) if setting.states else ()
        plan = DraftPlan(
            size=self._measured.size,
            depth=setting.depth,
            rows=setting.rows,
            right=setting.right,
            boundaries=places,
            hidden_size=self._config.hidden_size,
            continuations=self._measured.continuations,
            report=str(self._report(setting)),
        )
        return plan.write(self._folder / f"{setting.name}.plan.json")

    def _report(self, setting: Setting) -> Path:
        return self._folder / f"{setting.name}.report.json"


@contextmanager
def drafters(measured: Measured, config: ModelConfig) -> Iterator[Drafters]:
    """All drafters of a place, ended at the end; `config` is the target's."""
    with ExitStack() as stack:
        count = sum(setting.own_process for setting in measured.settings)
        servers = stack.enter_context(link_servers(count))
        found = Drafters(measured, config)
        stack.callback(found.stop)
        found.start(servers)
        yield found
