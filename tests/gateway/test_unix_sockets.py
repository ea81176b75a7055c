"""A gateway that is reached through files alone, and reaches its verify service so."""

from __future__ import annotations

import signal
import socket
import stat
from pathlib import Path

from launcher.services.readiness import is_serving
from slipstream import Client
from slipstream.rpc.unix_socket import UnixSocket
from support.ask import wait_until
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess


def test_both_apis_and_the_verify_service_over_unix_sockets(tokenizer_folder: Path, tmp_path: Path) -> None:
    http, grpc, health = (tmp_path / name for name in ("http.sock", "grpc.sock", "health.sock"))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(http))
    flags = ("--uds", str(http), "--grpc-uds", str(grpc), "--health-uds", str(health), "--uds-mode", "660")
    with (
        FakeVerify(unix_socket=UnixSocket(tmp_path / "verify.sock")) as verify,
        GatewayProcess(tokenizer_folder, verify.address, *flags) as gateway,
    ):
        assert (gateway.http_url, gateway.grpc_address) == (f"unix:{http}", f"unix:{grpc}")
        assert [stat.S_IMODE(each.stat().st_mode) for each in (http, grpc, health)] == [0o660, 0o660, 0o600]
        body = {"model": "tiny", "prompt": "abc", "max_tokens": 6}
        with gateway.http_client() as client:
            assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "abcabc"
            streamed = client.post("/v1/completions", json=body | {"stream": True}).text
            assert streamed.endswith("data: [DONE]\n\n")
        with Client(gateway.grpc_address) as client:
            assert client.generate("abc", max_tokens=6).text == "abcabc"
        wait_until(lambda: is_serving(f"unix:{health}"), gateway.logs)  # its health follows a moment later
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(60) == 0
        assert "Traceback" not in gateway.logs
        assert [path.name for path in tmp_path.iterdir()] == ["verify.sock"]
