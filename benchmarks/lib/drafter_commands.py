"""Commands of drafters that are not what one wishes for: one that attacks, and one that guesses at random."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from launcher.services.free_ports import free_ports
from launcher.services.process import ServiceCommand

HOSTILE_BOUNDARY = "2"
"""Whose states a hostile drafter asks for, so that it gets a ring on the GPU: EAGLE-3 heads read it as a rule."""


def hostile_command(verify: str, kind: str, name: str, transport: str, seconds: float) -> tuple[str, ...]:
    """A drafter that attaches as proposer `name` and attacks for so long at most; see tests/support/hostile_process."""
    boundaries = ("--boundaries", HOSTILE_BOUNDARY) if transport == "cuda_ipc" else ()
    how = ("--name", name, "--transport", transport, "--seconds", str(seconds), *boundaries)
    return (sys.executable, "-m", "support.hostile_process", verify, kind, *how)


def guessing_command(verify: str, name: str, environment: Mapping[str, str]) -> ServiceCommand:
    """A draft service on a free port whose proposer `name` guesses at random, and which takes no request by itself."""
    (port,) = free_ports(1)
    arguments = ("--proposers", f"{name}=support.proposers:random_tree", "--share", "0", "--max-depth", "3")
    command = (sys.executable, "-m", "draft_service", "--verify", verify, "--port", str(port), *arguments)
    return ServiceCommand("guessing", command, f"127.0.0.1:{port}", environment)
