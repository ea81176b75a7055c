"""The containers of deploy/, on a Docker engine where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from support.cluster import free_ports

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
SWITCH = "SLIPSTREAM_TEST_DOCKER"
BUILD_SECONDS, START_SECONDS, COMMAND_SECONDS = 3600.0, 900.0, 300.0
HANG_SECONDS = 15


def why_not() -> str:
    """Why no containers can be tried here; empty if they can."""
    if not os.environ.get(SWITCH):
        return f"builds images for minutes: {SWITCH}=1 tries the containers"
    for command in (["docker", "info"], ["docker", "compose", "version"], ["docker", "buildx", "version"]):
        try:
            tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        except OSError as error:
            return f"docker: {error.strerror}"
        if tried.returncode:
            return f"{' '.join(command)}: {(tried.stderr or tried.stdout).strip().splitlines()[-1]}"
    return ""


class Containers:
    """A project of its own name, on ports of its own, made from the compose files as they stand.

    Where base image and packages come from is taken from the environment, by the names in deploy/env.example.
    """

    def __init__(self, profile: str) -> None:
        http, grpc = free_ports(2)
        self.url = f"http://127.0.0.1:{http}"
        self._environment = {
            **os.environ,
            "SLIPSTREAM_ATTACH_TOKEN": "a-secret-of-this-test",
            "IMAGES": "slipstream-test",
            "HTTP_PORT": str(http),
            "GRPC_PORT": str(grpc),
            "HANG_SECONDS": str(HANG_SECONDS),
        }
        self.name = f"slipstream-test-{os.getpid()}"
        self.choose(profile)

    def choose(self, profile: str, *overrides: str) -> None:
        """Take this profile and these files of deploy/, beside the one that is always taken, from now on."""
        named = [part for file in ("docker-compose.yml", *overrides) for part in ("-f", str(DEPLOY / file))]
        self._prefix = ["docker", "compose", "-p", self.name, *named, "--profile", profile]

    def set(self, **variables: str) -> None:
        """Set variables of the compose file from now on."""
        self._environment.update(variables)

    def docker(self, *arguments: str) -> str:
        """Standard output of `docker ...`."""
        return self._run(["docker", *arguments], COMMAND_SECONDS)

    def compose(self, *arguments: str, seconds: float = COMMAND_SECONDS, check: bool = True) -> str:
        """Standard output of `docker compose ...`; AssertionError with all it said if it fails."""
        return self._run([*self._prefix, *arguments], seconds, check=check)

    def build(self, *services: str) -> None:
        self.compose("build", *services, seconds=BUILD_SECONDS)

    def up(self, *services: str) -> None:
        """Start what does not run as the files have it, and wait until all is healthy and attached."""
        try:
            self.compose("up", "-d", "--wait", *services, seconds=START_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.compose('logs', '--tail=40', check=False)}") from error
        self.wait_for(self.all_attached, "not all proposers are attached")

    def down(self) -> None:
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "10", check=False)

    def run_in(self, service: str, *command: str, check: bool = True) -> str:
        """What a command says that is run in the container of a service."""
        return self.compose("exec", "-T", service, *command, check=check)

    def python(self, service: str, code: str, *arguments: str) -> str:
        return self.run_in(service, "python", "-c", code, *arguments)

    def container(self, service: str) -> str:
        """The name of the container that `up` makes of a service."""
        return f"{self.name}-{service}-1"

    def inspect(self, container: str) -> dict[str, Any]:
        (found,) = json.loads(self.docker("inspect", container))
        return found

    def restarts(self, container: str) -> int:
        """How often the engine has started a container again."""
        return self.inspect(container)["RestartCount"]

    def verify_facts(self) -> dict[str, Any]:
        """What `slipstream info` says of the verify service; without proposers if that does not answer."""
        said = self.run_in("gateway", "slipstream", "info", "--json", "--verify", "verify:50052", check=False)
        facts: dict[str, Any] = json.loads(said)["verify"] if said.startswith("{") else {}
        return {"proposers": [], "state": {"attachments": 0}, **facts}

    def attachments(self) -> list[dict[str, Any]]:
        """The proposers that are attached, of several by one name the newest."""
        return [each for each in self.verify_facts()["proposers"] if each["attached"]]

    def all_attached(self) -> bool:
        return len(self.attachments()) == 2

    def signal(self, container: str, module: str, number: int) -> None:
        """Send a service's process a signal behind the back of the engine, which would not restart it else."""
        self.docker(
            "exec",
            container,
            "python",
            "-c",
            "import os, pathlib\n"
            "for folder in pathlib.Path('/proc').iterdir():\n"
            "    if folder.name.isdecimal():\n"
            "        words = (folder / 'cmdline').read_bytes().split(bytes(1))\n"
            f"        if words[1:3] == [b'-m', b'{module}']:\n"
            f"            os.kill(int(folder.name), {number})\n",
        )

    def ask(self, **fields: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/completions", json=fields, timeout=COMMAND_SECONDS)

    def stream(self, on_text: Callable[[], None], **fields: Any) -> str:
        """The text of a stream; `on_text` is called with each piece of it. AssertionError if it ends with an error."""
        text = ""
        with httpx.stream(
            "POST", f"{self.url}/v1/completions", json={**fields, "stream": True}, timeout=COMMAND_SECONDS
        ) as reply:
            assert reply.status_code == 200, reply.read()
            for line in reply.iter_lines():
                data = line.removeprefix("data: ")
                if not data or data == "[DONE]":
                    continue
                event = json.loads(data)
                assert "error" not in event, event
                for choice in event["choices"]:
                    text += choice["text"]
                on_text()
        return text

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}\n{self.compose('logs', '--tail=40', check=False)}")
            time.sleep(0.2)

    def _run(self, command: Sequence[str], seconds: float, *, check: bool = True) -> str:
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False, timeout=seconds
        )
        assert done.returncode == 0 or not check, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout
