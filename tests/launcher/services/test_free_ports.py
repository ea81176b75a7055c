from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.services import free_ports as free_ports_module
from launcher.services.free_ports import LOWEST, MOST_CLAIMS, free_ports


def test_free_ports_differ_and_can_be_bound():
    ports = free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_no_connection_takes_one_in_the_meantime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "range"
    monkeypatch.setattr(free_ports_module, "_RANGE", told)
    told.write_text("20000\t30000\n")
    assert all(LOWEST <= port < 20000 for port in free_ports(20))


@pytest.mark.parametrize("text", ["", "none", "1024 65535"])
def test_where_all_are_for_connections_the_system_chooses(text: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(free_ports_module, "_RANGE", tmp_path / "range")
    assert len(set(free_ports(4))) == 4


def test_no_other_process_gets_one_before_it_is_used() -> None:
    (port,) = free_ports(1)
    others = range(port + 1, port + 64)  # other tests have some of them
    code = f"from launcher.services.free_ports import _claim; print(_claim({port}), any(map(_claim, {others})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_claims_do_not_pile_up() -> None:
    free_ports(MOST_CLAIMS + 8)
    assert len(free_ports_module._claims()) == MOST_CLAIMS
