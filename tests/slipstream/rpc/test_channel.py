"""When a channel gives a connection up: one whose peer hangs, and one that takes long to come about."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from launcher.services.free_ports import free_ports
from slipstream.rpc import channel, server
from slipstream.rpc.channel import keepalive_options, open_sync_channel

HEALTH_SERVER = Path(__file__).parents[2] / "launcher" / "health_server.py"


@pytest.fixture
def peer():
    port = free_ports(1)[0]
    command = [sys.executable, str(HEALTH_SERVER), str(port), "120", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.address = f"127.0.0.1:{port}"
        yield process
        process.kill()


def test_a_peer_that_hangs_is_found(peer) -> None:
    # A tenth of the default: both times are those of the options, and no other one rules.
    with grpc.insecure_channel(peer.address, options=(*keepalive_options(1500, 500), *channel.LIMIT_OPTIONS)) as opened:
        watch = health_pb2_grpc.HealthStub(opened).Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        peer.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            next(watch)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert 0.4 < time.monotonic() - begun < 15


def test_both_ends_look_for_peers_that_hang_within_twenty_seconds() -> None:
    options = dict(keepalive_options())
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] == 20_000
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]
    for used in (channel._CHANNEL_OPTIONS, server._SERVER_OPTIONS):
        assert options.items() <= dict(used).items()


def test_a_connection_may_take_longer_to_come_about_than_the_pause_between_attempts(peer) -> None:
    """As on a busy machine, or across an ocean: the peer says its first word half a second late."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=pass_on_late, args=(door, peer.address, 0.5), daemon=True).start()
        with open_sync_channel(f"127.0.0.1:{door.getsockname()[1]}") as opened:
            check = health_pb2_grpc.HealthStub(opened).Check
            assert check(health_pb2.HealthCheckRequest(), timeout=60).status == health_pb2.HealthCheckResponse.SERVING


def pass_on_late(door: socket.socket, address: str, seconds: float) -> None:
    """Join the first connection at `door` to one to `address`, after a while."""
    near = door.accept()[0]
    time.sleep(seconds)
    host, port = address.split(":")
    with near, socket.create_connection((host, int(port))) as far:
        back = threading.Thread(target=copy, args=(far, near), daemon=True)
        back.start()
        copy(near, far)
        far.shutdown(socket.SHUT_WR)
        back.join(60)


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
