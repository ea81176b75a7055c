"""`slipstream serve`: the three services on one host, from start to drain."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from launcher.services.commands import Layout, reachable, split_address
from launcher.services.http_access import http_access, speaks_tls
from launcher.services.metrics_ports import LOOPBACK, metrics_port
from launcher.services.process import ServiceCommand
from launcher.services.readiness import StartupError, attached_proposers, is_serving, wait_attached
from launcher.supervision.first_request import first_request
from launcher.supervision.log_view import LogView
from launcher.supervision.supervisor import HANG_SECONDS, MOST_FAILURES, RestartPolicy, Supervisor
from slipstream.rpc.logs import LogFormat
from slipstream.rpc.unix_socket import is_unix

GIVEN_UP = 0
"""Takes the place of a signal's number where a service cannot be kept running."""
KILL_POLL_SECONDS = 0.1
READY_POLL_SECONDS = 0.1
WAIT_SECONDS = 60.0
"""How long readiness waits for a draft service that is started here: it starts beside the verify service, and takes but
seconds longer unless it compiles kernels."""
BESIDE_SECONDS = 10.0
"""How long the banner waits for a draft service's proposer that the verify service has in its own process as well."""
NOTHING_MISSING: Mapping[str, str] = MappingProxyType({})
DRAIN_MARGIN_SECONDS = 5.0
"""Services end their own drain first; the launcher's limit is this much later."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to run a layout."""

    model_name: str
    start_seconds: float
    drain_seconds: float
    max_restarts: int = MOST_FAILURES
    hang_seconds: float = HANG_SECONDS
    log_format: LogFormat = "text"


class PortTakenError(RuntimeError):
    """Something else listens where a service should."""


def check_ports(layout: Layout) -> None:
    """PortTakenError, naming the flag, unless every address can be bound."""
    wanted = {
        "--http-port": layout.http_address,
        "--grpc-port": layout.grpc_address,
        "--verify-port": layout.verify_address,
    }
    if layout.served:
        wanted["--draft-port"] = layout.draft_address
    for flag, address in wanted.items():
        if is_unix(address):
            continue
        host, port = split_address(address)
        try:
            with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
                pass
        except OSError as error:
            raise PortTakenError(f"cannot listen on {address}: {error.strerror}; choose another with {flag}") from error


def serve(layout: Layout, options: ServeOptions) -> int:
    """Run the services until a signal; returns the exit status.

    The first SIGTERM or SIGINT drains: running streams finish, new requests are refused. The second ends everything.
    An essential service that ends again and again, soon after each start, ends everything with status 1.
    """
    with LogView(sys.stderr, style=options.log_format) as view, contextlib.ExitStack() as stack:
        if speaks_tls(layout):
            # Clients' certificates are not the launcher's, and that of the server may be issued for any name.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slipstream-"))
            layout = replace(layout, health_socket=Path(folder) / "gateway.sock")
        return _serve(layout, options, view)


def _serve(layout: Layout, options: ServeOptions, view: LogView) -> int:
    # Gateway before the services it needs, so that its streams can finish.
    commands = [layout.gateway, *([layout.drafter] if layout.served else []), layout.verify]
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    policy = RestartPolicy(max_failures=options.max_restarts, hang_seconds=options.hang_seconds)
    supervisor = Supervisor(commands, view, policy, on_given_up=lambda _: ends.put(GIVEN_UP))
    signal.signal(signal.SIGTERM, _leave)
    names = ", ".join(reversed([command.name for command in commands]))
    view("slipstream", f"starting {names}; the first start on a machine also compiles the CPU kernels")
    try:
        supervisor.start(options.start_seconds)
    except StartupError as error:
        view("slipstream", f"{error.reason}; its log is above")
        return 1
    except KeyboardInterrupt:
        return 130
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: ends.put(number))
    try:
        _await_ready(layout.gateway, ends, options.start_seconds + layout.wait_for_drafter)
    except StartupError as error:
        view("slipstream", f"{error.reason}; its log is above")
        supervisor.kill()
        return 1
    if ends.empty():
        missing = _await_attachment(layout, supervisor, view) if layout.served else {}
        view.flush()
        with contextlib.suppress(OSError):  # a reader that has left is no reason to stop
            print(greeting(layout, options.model_name, missing), flush=True)
    given_up = ends.get() == GIVEN_UP
    view("slipstream", "draining; again to stop at once")
    status = _drain(supervisor, options.drain_seconds + DRAIN_MARGIN_SECONDS, ends)
    return 1 if given_up else status


def greeting(layout: Layout, model_name: str, missing: Mapping[str, str] = NOTHING_MISSING) -> str:
    """Where the services listen, and a command to try them with.

    `missing`: proposers of the draft service that are not attached, by name, and why.
    """
    return f"""
Slipstream is ready.
  model      {model_name} ({layout.model})
  proposers  {_proposer_lines(layout, missing)}
  HTTP       {http_access(layout).base}/v1{_page_line(layout)}
  gRPC       {reachable(layout.grpc_address)}
  metrics    {_metrics(layout)}

Try it:
{first_request(layout, model_name)}

Ctrl-C finishes what runs and stops; a second Ctrl-C stops at once.
"""


def _page_line(layout: Layout) -> str:
    """Where a browser finds the page; empty where it cannot."""
    if is_unix(layout.http_address) or "--no-page" in layout.gateway_arguments:
        return ""
    return f"\n  page       {http_access(layout).base}/"


def _metrics(layout: Layout) -> str:
    """Where Prometheus finds them."""
    ports = {"verify": metrics_port(layout.verify_arguments)}
    if layout.served:
        ports["draft"] = metrics_port(layout.draft_arguments)
    others = [f"{name} http://{LOOPBACK}:{port}/metrics" for name, port in ports.items() if port]
    own = f"gateway {http_access(layout).base}/metrics"
    return ", ".join(([] if is_unix(layout.http_address) else [own]) + others) or "on the HTTP socket"


def _proposer_lines(layout: Layout, missing: Mapping[str, str]) -> str:
    """The names, and below them why some are not attached."""
    here = layout.own_names
    names = []
    for index, name in enumerate(layout.proposers):
        notes = [
            *(["default"] if not index else []),
            *(["not attached"] if name in missing and name not in here else []),
        ]
        names.append(f"{name} ({', '.join(notes)})" if notes else name)
    reasons = [f"the draft service's {name} is not attached: {reason}" for name, reason in missing.items()]
    return "\n             ".join((", ".join(names) or "none", *reasons))


def wait_seconds(asked: float | None, layout: Layout) -> float:
    """For how long readiness waits for proposers, where the operator has `asked` for so many seconds, or for none."""
    return asked if asked is not None else WAIT_SECONDS if layout.served else 0.0


def _await_ready(gateway: ServiceCommand, ends: queue.SimpleQueue[int], seconds: float) -> None:
    """Return once the gateway serves, or there is a reason to end; StartupError after so many seconds."""
    deadline = time.monotonic() + seconds
    while ends.empty() and not is_serving(gateway.address, tls=gateway.tls):
        if time.monotonic() > deadline:
            raise StartupError(f"{gateway.name} was not ready in time")
        time.sleep(READY_POLL_SECONDS)


def _await_attachment(layout: Layout, supervisor: Supervisor, view: LogView) -> dict[str, str]:
    """What the draft service does not attach, and why: its absence costs speed alone.

    Readiness has waited for it, but not for proposers that the verify service has in its own process as well.
    """
    beside = layout.wait_for_drafter and set(layout.served_names) & set(layout.own_names)
    names, seconds = layout.served_names, min(BESIDE_SECONDS, layout.wait_for_drafter) if beside else 0.0
    try:
        return wait_attached(layout.verify_address, names, supervisor.process("draft"), seconds)
    except StartupError as error:
        view("slipstream", f"decoding plainly for now: {error.reason}")
        attached = attached_proposers(layout.verify_address, tls=layout.verify.tls)
        return {name: f"{error.reason}; it attaches later, if it can" for name in names if name not in attached}


def _drain(supervisor: Supervisor, grace: float, signals: queue.SimpleQueue[int]) -> int:
    drain = threading.Thread(target=supervisor.drain, args=(grace,), name="drain")
    drain.start()
    while drain.is_alive():
        try:
            if signals.get(timeout=KILL_POLL_SECONDS) == GIVEN_UP:
                continue
        except queue.Empty:
            continue
        supervisor.kill()
        drain.join()
        return 130
    return 0


def _leave(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
