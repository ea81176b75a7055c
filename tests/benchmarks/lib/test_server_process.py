"""A server of a benchmark takes other ports where its own are taken."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from benchmarks.lib import server_process
from benchmarks.lib.server_process import ServeError, served
from launcher.services.free_ports import free_ports


def test_a_taken_port_is_exchanged(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[int]] = []

    def first_a_taken_one(count: int) -> list[int]:
        ports = free_ports(count)
        drawn.append(ports)
        if len(drawn) == 1:
            ports[server_process.PORTS.index("verify")] = taken.getsockname()[1]
        return ports

    monkeypatch.setattr(server_process, "free_ports", first_a_taken_one)
    with socket.socket() as taken:
        taken.bind((server_process.LOOPBACK, 0))
        taken.listen()
        with served(tiny_model, ("ngram",), tmp_path / "log") as server:
            assert list(server.ports.values()) == drawn[-1]
    assert len(drawn) >= 2  # others may have taken one besides


def test_what_else_fails_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="nowhere"), served(tmp_path / "nowhere", ("ngram",), tmp_path / "log"):
        pass
