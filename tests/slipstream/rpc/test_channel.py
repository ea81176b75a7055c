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
from slipstream.rpc.channel import KEEPALIVE_OPTIONS, PROMPT_KEEPALIVE_OPTIONS, open_sync_channel

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
    options = (*channel.keepalive_options(1500, 500), *channel.LIMIT_OPTIONS)
    with grpc.insecure_channel(peer.address, options=options) as opened:
        watch = health_pb2_grpc.HealthStub(opened).Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        peer.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            next(watch)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert 0.4 < time.monotonic() - begun < 15


def test_both_ends_look_for_peers_that_hang_within_twenty_seconds() -> None:
    options = dict(KEEPALIVE_OPTIONS)
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] == 20_000
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]
    assert options.items() <= dict(server._SERVER_OPTIONS).items()
    # An option that is given twice would have one of its values, and nothing says which.
    assert not options.keys() & dict(channel._CHANNEL_OPTIONS).keys()


def test_who_has_another_peer_asks_as_often_as_servers_take_it_and_no_oftener() -> None:
    options = dict(PROMPT_KEEPALIVE_OPTIONS)
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] == 5_000
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]
    least = dict(server._SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert options["grpc.keepalive_time_ms"] >= 2 * least


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
