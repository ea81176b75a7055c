"""`slipstream serve` as a process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.lib.server_process import ServeError, Server, start_server
from launcher.cli.info import collect

START_SECONDS = 120


@dataclass(frozen=True)
class Served(Server):
    """A running `slipstream serve` of a model named tiny."""

    def facts(self):
        """See launcher.cli.info."""
        return collect(self.verify, self.http.removeprefix("http://"))

    def wait_for(self, condition, seconds: float = START_SECONDS):
        """Facts for which `condition` holds."""
        deadline = time.monotonic() + seconds
        while not condition(facts := self.facts()):
            assert time.monotonic() < deadline, facts
            time.sleep(0.1)
        return facts


def start(model: Path, draft: tuple[str, ...], log: Path, *arguments: str, descriptors: int = 0) -> Served:
    """Run the launcher until it greets; its log goes to a file. `descriptors`: the limit of open files, if not 0."""
    try:
        server = start_server(model, draft, log, "--model-name", "tiny", *arguments, descriptors=descriptors)
    except ServeError as error:
        pytest.fail(str(error))
    assert server.http in server.greeting
    return Served(server.process, server.ports, server.log, server.greeting)
