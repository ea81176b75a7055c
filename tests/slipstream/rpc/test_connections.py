"""Connections to a gRPC server that say nothing: how many there may be, and for how long."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time

import pytest
from grpc_health.v1 import health

from launcher.services.readiness import HealthConnection, is_serving
from slipstream.rpc.descriptors import RESERVED
from slipstream.rpc.server import GrpcServer


def served(max_connections: int, scenario):
    """What `scenario(port)` returns, called on a thread beside a server with health alone."""

    async def run():
        server = GrpcServer(
            host="127.0.0.1",
            port=0,
            services=[health.SERVICE_NAME],
            register=lambda server: None,
            max_connections=max_connections,
        )
        port = await server.start()
        await server.set_serving(True)
        try:
            return await asyncio.to_thread(scenario, port)
        finally:
            await server.drain(0)

    return asyncio.run(run())


def test_a_health_check_that_keeps_its_connection_outlasts_a_crowd() -> None:
    def scenario(port: int) -> tuple[bool, bool, bool]:
        kept = HealthConnection(f"127.0.0.1:{port}")
        first = kept.answers(10.0)
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        anew = is_serving(f"127.0.0.1:{port}", 2.0)
        later = kept.answers(10.0)
        for connection in (*crowd, kept):
            connection.close()
        return first, anew, later

    assert served(4, scenario) == (True, False, True)


def test_a_connection_that_says_nothing_is_closed() -> None:
    def scenario(port: int) -> float:
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), 60) as silent:
            while silent.recv(1024):
                pass
        return time.monotonic() - begun

    assert 5 < served(4, scenario) < 50


@pytest.mark.parametrize(("most", "http", "grpc"), [(4000, 2808, 936), (300, 112, 37), (20, 16, 16)])
def test_the_limit_is_raised_and_shared_out(most: int, http: int, grpc: int) -> None:
    code = (
        "from slipstream.rpc.descriptors import connection_limit, limit, raise_limit\n"
        "print(raise_limit(), limit(), connection_limit(0.75, 10000), connection_limit(0.25, 10000))"
    )
    shell = f'ulimit -Sn 20; ulimit -Hn {most}; exec "$@"'
    command = ["/bin/sh", "-c", shell, "sh", sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert [int(word) for word in printed.split()] == [most, most, http, grpc]
    assert http + grpc <= max(most - min(RESERVED, most // 2), 32)
