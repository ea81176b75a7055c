"""Several hosts on one machine: network namespaces for root on Linux, loopback addresses otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A place to run commands, with an address that the other hosts can reach."""

    name: str
    address: str
    prefix: tuple[str, ...]
    """Put before a command so that it runs there."""


def can_make_namespaces() -> bool:
    """Whether this process may make network namespaces."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"slip-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return False
    _ip("netns", "del", name)
    return True


@contextmanager
def namespaces(names: Sequence[str]) -> Iterator[dict[str, Host]]:
    """One namespace a host, joined by a bridge in a further one: the machine's own network is left alone."""
    tag = os.getpid()
    hub = f"slip-{tag}-hub"
    with ExitStack() as stack:
        _add_namespace(hub, stack)
        _ip("-n", hub, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge0", "up")
        hosts = {}
        for index, name in enumerate(names):
            namespace, address = f"slip-{tag}-{name}", f"10.77.0.{index + 2}"
            _add_namespace(namespace, stack)
            _ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{index}", "netns", hub)
            _ip("-n", hub, "link", "set", f"port{index}", "master", "bridge0", "up")
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
            hosts[name] = Host(name, address, ("ip", "netns", "exec", namespace))
        yield hosts


@contextmanager
def loopbacks(names: Sequence[str]) -> Iterator[dict[str, Host]]:
    """One loopback address a host, all in the machine's own network."""
    distinct = sys.platform == "linux"  # elsewhere only 127.0.0.1 is up
    yield {name: Host(name, f"127.0.0.{index + 2 if distinct else 1}", ()) for index, name in enumerate(names)}


def _add_namespace(name: str, stack: ExitStack) -> None:
    _ip("netns", "add", name)
    stack.callback(_ip, "netns", "del", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
