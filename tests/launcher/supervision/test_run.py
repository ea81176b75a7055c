"""`slipstream run` around a small gRPC server that reports health."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from launcher.supervision.run import HANG_STATUS, service_command
from slipstream.rpc.tls import Tls
from support.cluster import free_ports

SERVER = Path(__file__).parents[1] / "health_server.py"
RUN = """
import sys
from launcher.services.process import ServiceCommand
from launcher.supervision.run import run
port, server, hang, start, *rest = sys.argv[1:]
command = ServiceCommand("verify", (sys.executable, server, port, *rest), f"127.0.0.1:{port}")
sys.exit(run(command, hang_seconds=float(hang), start_seconds=float(start)))
"""


@contextmanager
def started(hang: float, *rest: str, server: Path = SERVER, start: float = 600.0) -> Iterator[subprocess.Popen[str]]:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", RUN, str(port), str(server), str(hang), str(start), *rest]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.slow
def test_a_service_that_hangs_is_ended():
    with started(1.0, "600", "0") as running:
        assert [running.stdout.readline() for _ in range(2)] == ["ready\n", "asked again\n"]
        (service,) = psutil.Process(running.pid).children()
        service.suspend()
        assert "does not answer" in running.stdout.readline()
        assert running.wait(60) == HANG_STATUS
        assert not service.is_running()


def test_so_is_one_that_hangs_before_it_has_answered(tmp_path):
    silent = tmp_path / "silent.py"
    silent.write_text("import time; time.sleep(600)")
    with started(0.4, server=silent, start=0.2) as running:
        assert running.wait(60) == HANG_STATUS
        assert "does not answer" in running.stdout.read()


def test_it_drains_and_its_status_is_passed_on():
    with started(0.0, "600", "0") as drained, started(0.0, "0", "0") as ended, started(0.0, "600", "600") as cut:
        for running in (drained, cut):
            assert running.stdout.readline() == "ready\n"
        drained.send_signal(signal.SIGTERM)
        assert drained.wait(60) == 0
        assert drained.stdout.read() == "draining\ndrained\n"
        assert ended.wait(60) == 3
        psutil.Process(cut.pid).children()[0].kill()
        assert cut.wait(60) == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("service", "arguments", "environment", "address"),
    [
        ("verify", ["--model=/m"], {}, "127.0.0.1:50052"),
        ("draft", ["--host=0.0.0.0", "--port", "6000"], {}, "127.0.0.1:6000"),
        ("gateway", ["--http-port=80"], {"SLIPSTREAM_GATEWAY_GRPC_PORT": "7000"}, "127.0.0.1:7000"),
        ("verify", ["--uds=/run/verify"], {}, "unix:/run/verify"),
        ("gateway", ["--health-uds", "/run/health"], {"SLIPSTREAM_GATEWAY_GRPC_UDS": "/run/grpc"}, "unix:/run/health"),
        ("gateway", ["--grpc-port=8000", "--host", "::1"], {"SLIPSTREAM_GATEWAY_GRPC_PORT": "7000"}, "[::1]:8000"),
    ],
)
def test_health_is_asked_for_where_the_service_listens(service, arguments, environment, address):
    command = service_command(service, arguments, environment)
    assert command.address == address
    assert list(command.arguments[3:]) == arguments
    assert service_command(service, arguments, environment, "127.0.0.1:1").address == "127.0.0.1:1"


def test_a_file_may_say_where_the_service_listens(tmp_path):
    (tmp_path / "draft.toml").write_text('port = 6001\nhost = "::1"\nproposers = ["ngram"]\n')
    assert service_command("draft", [f"--config={tmp_path}/draft.toml"], {}).address == "[::1]:6001"
    assert service_command("draft", ["--config", f"{tmp_path}/draft.toml", "--port=7"], {}).address == "[::1]:7"
    assert service_command("draft", ["--config", f"{tmp_path}/none"], {}).address == "127.0.0.1:50053"


def test_services_that_speak_tls_are_asked_with_their_own_certificate(tmp_path):
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(name)
    files = {f"SLIPSTREAM_VERIFY_TLS_{name.upper()}": f"{tmp_path}/{name}" for name in ("ca", "cert", "key")}
    command = service_command("verify", ["--tls-server-name=inside"], files)
    assert command.tls == Tls(b"ca", b"cert", b"key", "inside")
    assert service_command("verify", [], {}).tls is None


def test_a_gateway_that_speaks_tls_with_clients_is_asked_over_a_socket_of_its_own(tmp_path):
    command = service_command("gateway", ["--ssl-certfile=c"], {}, folder=tmp_path)
    assert command.address == f"unix:{tmp_path}/gateway.sock"
    assert command.arguments[-2:] == ("--health-uds", f"{tmp_path}/gateway.sock")
    assert command.tls is None
    own = service_command("gateway", ["--ssl-certfile=c", "--grpc-uds=/run/own"], {}, folder=tmp_path)
    assert own.address == "unix:/run/own"
    assert "--health-uds" not in own.arguments


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="no service 'cache'; there are verify, draft, gateway"):
        service_command("cache", [], {})
