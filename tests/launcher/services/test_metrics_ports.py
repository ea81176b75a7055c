from __future__ import annotations

import socket

import pytest

from launcher.services.metrics_ports import metrics_flags, metrics_port

VARIABLE = "SLIPSTREAM_VERIFY_METRICS_PORT"


@pytest.fixture
def taken() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_usual_port_or_a_free_one(taken: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert metrics_flags((), VARIABLE, free) == ("--metrics-port", str(free))
    other = metrics_port(("--threads", "1", *metrics_flags(("--threads=2",), VARIABLE, taken)))
    assert other not in (None, taken)
    assert metrics_port(metrics_flags((), VARIABLE, free, [free])) != free


@pytest.mark.parametrize("flag", ["--metrics-port=0", "--host=0.0.0.0", "--config=file.toml"])
def test_the_operator_decides(flag: str, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics_flags((flag,), VARIABLE, taken) == ()
    assert metrics_port((flag,)) is None
    monkeypatch.setenv(VARIABLE, "0")
    assert metrics_flags((), VARIABLE, taken) == ()
