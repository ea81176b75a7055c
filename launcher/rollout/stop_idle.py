"""Ends a draft service that drafts for nothing any more, where that can be done from here."""

from __future__ import annotations

import ipaddress
import signal
from typing import Final

from launcher.rollout.traffic_shift import SwapError, ask_info
from launcher.services.commands import split_address
from launcher.services.pidfd_process import PidfdProcess
from slipstream.rpc.channel import open_sync_channel
from slipstream.rpc.tls import Tls
from slipstream.rpc.unix_socket import is_unix

DRAIN_SECONDS: Final = 30.0
PROGRAM: Final = "draft_service"
"""Part of the command line of every draft service of ours."""


def stop_idle(address: str, pid: int, tls: Tls | None = None) -> str:
    """Have the draft service at `address`, process `pid`, drain; says what came of it.

    Only one on this host: it listens on loopback or a Unix socket, answers there as that process, and the process is a
    draft service.
    """
    try:
        process = PidfdProcess(pid) if _is_here(address, pid, tls) else None
    except OSError:
        return f"{address} has ended"
    if process is None:
        return f"{address} is idle and may be stopped where it runs"
    with process:
        if not any(PROGRAM in part for part in process.arguments):
            return f"{address} is idle and may be stopped by whoever started it"
        try:
            process.signal(signal.SIGTERM)
        except PermissionError:
            return f"{address} is idle and may be stopped by its user"
        return f"{address} is stopped" if process.wait(DRAIN_SECONDS) else f"{address} is still draining"


def end_own(address: str, process: PidfdProcess) -> str:
    """End a service that was started from here: SIGTERM, then SIGKILL; says what came of it."""
    process.signal(signal.SIGTERM)
    if not process.wait(DRAIN_SECONDS):
        process.signal(signal.SIGKILL)
        process.wait(DRAIN_SECONDS)
    return f"{address} is stopped"


def _is_here(address: str, pid: int, tls: Tls | None) -> bool:
    try:
        if not is_unix(address) and not _on_loopback(split_address(address)[0]):
            return False
        with open_sync_channel(address, tls=tls) as channel:
            return bool(ask_info(address, channel).process_id == pid)
    except (SwapError, ValueError):
        return False


def _on_loopback(host: str) -> bool:
    """ValueError for a name other than localhost."""
    return host == "localhost" or ipaddress.ip_address(host).is_loopback
