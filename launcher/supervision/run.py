"""`slipstream run`: one service, ended if it hangs, for containers and units whose manager restarts what has ended."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from launcher.services.commands import join_address, reachable
from launcher.services.folder_check import named_folders, obstacles
from launcher.services.process import ServiceCommand, ServiceProcess, Spawner
from launcher.services.service_settings import ToldSettings
from launcher.supervision.liveness_probe import PROBE_SECONDS, LivenessProbe
from slipstream.rpc.unix_socket import SCHEME

HANG_STATUS = 1
"""Exit status of a service that was ended because it hung."""

_SERVICES = {
    "verify": ("verify_service", "port", 50052),
    "draft": ("draft_service", "port", 50053),
    "gateway": ("gateway", "grpc-port", 50051),
}
"""Module, the setting that names the port of the gRPC server, and its default."""

_SOCKETS = {"verify": ("uds",), "draft": ("uds",), "gateway": ("health-uds", "grpc-uds")}
"""Settings that name Unix sockets on which health is answered, the first first."""

OBSTACLES_SHOWN = 3
"""Of a folder whose files cannot be read."""

_ENDED = 0
"""Takes the place of a signal's number once the service has ended."""


def service_command(
    service: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    address: str = "",
    *,
    folder: Path | None = None,
) -> ServiceCommand:
    """The command of `service`; ValueError for a name that is none.

    Unless `address` says so, health is asked for where flags, environment or file have the service listen, with its own
    certificate where it speaks TLS. A gateway that does is given a socket in `folder` for that.
    """
    if service not in _SERVICES:
        raise ValueError(f"no service {service!r}; there are {', '.join(_SERVICES)}")
    told = ToldSettings(service, arguments, environment)
    module, gateway = _SERVICES[service][0], service == "gateway"
    own_door = gateway and told.get("ssl-certfile") and not any(map(told.get, _SOCKETS["gateway"]))
    if own_door and folder is not None and not address:
        arguments = [*arguments, "--health-uds", str(folder / "gateway.sock")]
        told = ToldSettings(service, arguments, environment)
    tls = None
    if not gateway and (authority := told.get("tls-ca")):
        from slipstream.rpc.tls import Tls

        certificate, key = Path(told.get("tls-cert")), Path(told.get("tls-key"))
        tls = Tls.read(Path(authority), certificate, key, told.get("tls-server-name"))
    own = {name: value for name, value in environment.items() if name.startswith(f"SLIPSTREAM_{service.upper()}_")}
    command = (sys.executable, "-m", module, *arguments)
    return ServiceCommand(service, command, address or _health_address(service, told), own, tls=tls)


def _health_address(service: str, told: ToldSettings) -> str:
    if path := next(filter(None, map(told.get, _SOCKETS[service])), ""):
        return f"{SCHEME}{path}"
    _, port_name, default = _SERVICES[service]
    host, port = told.get("host") or "127.0.0.1", told.get(port_name)
    return reachable(join_address(host, int(port) if port.isdecimal() else default))


def run(command: ServiceCommand, *, hang_seconds: float, start_seconds: float) -> int:
    """Run the service until it ends, pass its output and our SIGTERM and SIGINT on; returns the exit status.

    What it will not be able to read of the folders that its command names is said first.

    A service that does not report its health for `hang_seconds`, or `start_seconds` more before it first serves, is
    killed, and HANG_STATUS returned. `hang_seconds` 0: never. To be called in the main thread.
    """
    events: queue.SimpleQueue[int] = queue.SimpleQueue()
    for passed_on in (signal.SIGTERM, signal.SIGINT):
        signal.signal(passed_on, lambda number, _frame: events.put(number))
    for folder in named_folders([*command.arguments, *command.environment.values()]):
        for obstacle in islice(obstacles(folder), OBSTACLES_SHOWN):
            _print(command.name, obstacle)
    process = ServiceProcess(command, Spawner(), _print)
    hung = threading.Event()

    def await_end() -> None:
        process.wait()
        events.put(_ENDED)

    def watch() -> None:
        probe = LivenessProbe(process)
        while process.running:
            if probe.failed(hang_seconds, start_seconds):
                _print(command.name, f"{command.name} does not answer at {command.address} and is killed")
                hung.set()
                process.signal(signal.SIGKILL)
                return
            time.sleep(min(PROBE_SECONDS, hang_seconds / 4))

    threading.Thread(target=await_end, name="end", daemon=True).start()
    if hang_seconds > 0:
        threading.Thread(target=watch, name="liveness-probe", daemon=True).start()
    while (number := events.get()) != _ENDED:
        process.signal(signal.Signals(number))
    status = process.wait() or 0
    return HANG_STATUS if hung.is_set() else 128 - status if status < 0 else status


def _print(_name: str, line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:  # nobody reads the log any more, which is no reason to stop
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
