"""`slipstream serve`: the three services on one host, from start to drain."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import sys
import threading
from dataclasses import dataclass

from launcher.commands import Layout, reachable, split_address
from launcher.first_request import first_request
from launcher.log_view import LogView
from launcher.readiness import StartupError, wait_attached
from launcher.supervisor import HANG_SECONDS, MOST_FAILURES, RestartPolicy, Supervisor

GIVEN_UP = 0
"""Takes the place of a signal's number where a service cannot be kept running."""
KILL_POLL_SECONDS = 0.1
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
    with LogView(sys.stderr) as view:
        return _serve(layout, options, view)


def _serve(layout: Layout, options: ServeOptions, view: LogView) -> int:
    # Gateway before the services it needs, so that its streams can finish.
    commands = [layout.gateway, *([layout.drafter] if layout.served else []), layout.verify]
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    policy = RestartPolicy(most_failures=options.max_restarts, hang_seconds=options.hang_seconds)
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
    if layout.served:
        _await_attachment(layout, supervisor, view)
    view.flush()
    with contextlib.suppress(OSError):  # a reader that has left is no reason to stop
        print(greeting(layout, options.model_name), flush=True)
    given_up = ends.get() == GIVEN_UP
    view("slipstream", "draining; again to stop at once")
    status = _drain(supervisor, options.drain_seconds + DRAIN_MARGIN_SECONDS, ends)
    return 1 if given_up else status


def greeting(layout: Layout, model_name: str) -> str:
    """Where the services listen, and a command to try them with."""
    http = reachable(layout.http_address)
    names = [f"{name} (default)" if not index else name for index, name in enumerate(layout.proposers)]
    return f"""
Slipstream is ready.
  model      {model_name} ({layout.model})
  proposers  {", ".join(names) or "none"}
  HTTP       http://{http}/v1
  gRPC       {reachable(layout.grpc_address)}

Try it:
{first_request(layout, model_name)}

Ctrl-C finishes what runs and stops; a second Ctrl-C stops at once.
"""


def _await_attachment(layout: Layout, supervisor: Supervisor, view: LogView) -> None:
    """The drafter serves before it is attached. One that cannot attach costs speed alone, so serving goes on."""
    try:
        wait_attached(layout.verify_address, layout.proposers, supervisor.process("draft"), seconds=10.0)
    except StartupError as error:
        view("slipstream", f"decoding plainly for now: {error.reason}")


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
