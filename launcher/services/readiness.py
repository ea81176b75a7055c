"""Waiting until services answer: gRPC health of each, and the attachment of the draft service."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from launcher.services.process import ServiceProcess
from slipstream.rpc.channel import open_sync_channel
from slipstream.rpc.tls import Tls
from slipstream.v1 import verify_pb2, verify_pb2_grpc

POLL_SECONDS = 0.05
PROBE_SECONDS = 2.0
HEALTH_SECONDS = 10.0
"""Longest time until `slipstream probe` answers: whoever runs it as a health check has a limit of its own."""
LOG_LINES_SHOWN = 40
IN_PROCESS_TRANSPORT = "inproc"
"""Of proposers that the verify service runs itself."""


class StartupError(RuntimeError):
    """A service ended or did not become ready. `reason` is one line; the message carries the end of its log as well."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


def is_serving(address: str, timeout: float = PROBE_SECONDS, tls: Tls | None = None) -> bool:
    """Whether the server at `address` reports SERVING."""
    with open_sync_channel(address, tls=tls) as channel:
        return _check_health(channel, timeout) == health_pb2.HealthCheckResponse.SERVING


class HealthConnection:
    """Asks one server for its health again and again, over a connection that stays.

    A server that is full of connections takes no new ones, and is not to count as one that does not answer.
    """

    __slots__ = ("_address", "_channel", "_tls")

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        self._address = address
        self._tls = tls
        self._channel: grpc.Channel | None = None

    def answers(self, timeout: float) -> bool:
        """Whether the server reports its health, be it that it does not serve."""
        return self.serves(timeout) is not None

    def serves(self, timeout: float) -> bool | None:
        """Whether the server reports that it serves; None if it reports nothing."""
        if self._channel is None:
            self._channel = open_sync_channel(self._address, tls=self._tls)
        status = _check_health(self._channel, timeout)
        return None if status is None else status == health_pb2.HealthCheckResponse.SERVING

    def close(self) -> None:
        """Ask no more."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _check_health(channel: grpc.Channel, timeout: float) -> int | None:
    try:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # missing in its types
        return int(check(health_pb2.HealthCheckRequest(), timeout=timeout).status)
    except grpc.RpcError:
        return None


def attached_proposers(verify_address: str, timeout: float = PROBE_SECONDS, tls: Tls | None = None) -> frozenset[str]:
    """Names of the proposers attached to a verify service; empty if it does not answer."""
    info = _info(verify_address, timeout, tls)
    return frozenset() if info is None else frozenset(each.name for each in info.proposers if each.attached)


def _info(verify_address: str, timeout: float, tls: Tls | None) -> verify_pb2.GetInfoResponse | None:
    with open_sync_channel(verify_address, tls=tls) as channel:
        try:
            info: verify_pb2.GetInfoResponse = verify_pb2_grpc.VerifyServiceStub(channel).GetInfo(
                verify_pb2.GetInfoRequest(), timeout=timeout
            )
        except grpc.RpcError:
            return None
    return info


def served_folder(verify_address: str, timeout: float = PROBE_SECONDS, tls: Tls | None = None) -> Path | None:
    """Folder of the model that a verify service serves; None if it does not answer, or has it where we do not."""
    info = _info(verify_address, timeout, tls)
    if info is None:
        return None
    folder = Path(info.model_path)
    return folder if folder.is_absolute() and (folder / "config.json").is_file() else None


def wait_serving(processes: Sequence[ServiceProcess], deadline: float) -> None:
    """Return once all have started; StartupError if one ends first or `deadline` (monotonic) passes.

    One has started when it reports SERVING, or anything where its command says that it serves later.
    """
    waiting = list(processes)
    while waiting := [process for process in waiting if not _started(process)]:
        for process in processes:
            _check(process, deadline, "ready", late=process in waiting)
        time.sleep(POLL_SECONDS)


def wait_attached(
    verify_address: str, proposers: Sequence[str], drafter: ServiceProcess, seconds: float
) -> dict[str, str]:
    """Return once each of a draft service's proposers is attached, or will not be; with the reasons of the latter.

    StartupError if `drafter` ends first or the time is up. Proposers of the same names in the verify service's own
    process do not count.
    """
    deadline = time.monotonic() + seconds
    while (refused := _decided(verify_address, proposers, drafter.command.tls)) is None:
        _check(drafter, deadline, "attached to the verify service")
        time.sleep(POLL_SECONDS)
    return refused


def _decided(verify_address: str, proposers: Sequence[str], tls: Tls | None) -> dict[str, str] | None:
    """Why some of these are not attached; None as long as that is open for any."""
    info = _info(verify_address, PROBE_SECONDS, tls)
    if info is None:
        return None
    attached = {each.name for each in info.proposers if each.attached and each.transport != IN_PROCESS_TRANSPORT}
    reasons = {each.proposer: each.reason for each in info.refusals}
    missing = [name for name in proposers if name not in attached]
    return {name: reasons[name] for name in missing} if all(name in reasons for name in missing) else None


def _started(process: ServiceProcess) -> bool:
    with open_sync_channel(process.command.address, tls=process.command.tls) as channel:
        status = _check_health(channel, PROBE_SECONDS)
    return status == health_pb2.HealthCheckResponse.SERVING or (process.command.serves_later and status is not None)


def _check(process: ServiceProcess, deadline: float, what: str, *, late: bool = True) -> None:
    name = process.command.name
    if not process.running:
        process.wait(1.0)
        raise _failure(process, f"{name} {process.describe_end()} before it was {what}")
    if late and time.monotonic() > deadline:
        raise _failure(process, f"{name} was not {what} in time")


def _failure(process: ServiceProcess, reason: str) -> StartupError:
    log = process.log(LOG_LINES_SHOWN) or "(no output)"
    command = " ".join(process.command.arguments)
    return StartupError(f"{reason}\n  command: {command}\n  end of its log:\n{log}", reason)
