"""The draft service as a process of its own."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from slipstream.rpc.channel import open_channel, open_sync_channel
from slipstream.v1 import draft_pb2 as pb
from tests.draft_service.verify_peer import VerifyPeer, admin_info, open_command, stamp


@contextmanager
def draft_service(*flags: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "draft_service", "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            ready = next(match for line in process.stderr if (match := re.search(r"ready grpc=(\d+)", line)))
            yield process, int(ready[1])
        finally:
            process.kill()


async def health_of(port: int) -> int:
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)).status


def reflected_by(port: int) -> set[str]:
    with open_sync_channel(f"127.0.0.1:{port}") as channel:
        return set(ProtoReflectionDescriptorDatabase(channel).get_services())


def test_serves_attaches_and_leaves_in_order() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        port = await peer.start()
        flags = ("--verify", f"127.0.0.1:{port}", "--proposers", "ngram", "--max-nodes", "5", "--device", "cpu")
        with draft_service(*flags) as (process, own_port):
            epoch = await peer.next_epoch()
            attach = await peer.attachments.get()
            assert attach.proposers[0].max_nodes == 5
            assert attach.address == f"127.0.0.1:{own_port}"
            assert (attach.device, attach.gpu_uuid) == ("cpu", "")
            tokens = [1, 2, 3, 1, 2]
            peer.send(open_command(stamp(epoch, 0, 1, tokens), tokens))
            assert list((await peer.next_tree()).token_ids) == [3, 1, 2]
            info = await admin_info(own_port)
            assert (info.attached, info.epoch, info.sessions, info.trees_sent) == (True, epoch, 1, 1)
            assert (info.process_id, info.verify_address) == (process.pid, f"127.0.0.1:{port}")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(peer.ended.get(), 60) == "half-closed"
            assert await asyncio.to_thread(process.wait, 60) == 0
        await peer.stop()

    asyncio.run(scenario())


def test_serves_without_a_verify_service(unused_port: int) -> None:
    async def scenario() -> None:
        metrics = str(unused_port)
        with draft_service("--verify", "127.0.0.1:1", "--metrics-port", metrics) as (process, port):
            assert await health_of(port) == health_pb2.HealthCheckResponse.SERVING
            info = await admin_info(port)
            assert not info.attached
            assert info.proposers == [
                pb.ProposerOffer(name="ngram", max_nodes=9, max_depth=8, device="cpu", own_text_only=True),
            ]
            page = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{metrics}/metrics").read().decode())
            assert "slipstream_draft_attached 0.0" in page
            reflected = await asyncio.to_thread(reflected_by, port)
            assert reflected >= {"slipstream.v1.DraftAdminService", "grpc.health.v1.Health"}
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0

    asyncio.run(scenario())


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--proposers", "nobody"], 1, "no proposer named 'nobody'"),
        (["--proposers", "draft-model"], 1, "draft-model"),
        (["--proposers", "a b"], 2, "--proposers"),
        (["--max-nodes", "65"], 2, "--max-nodes"),
    ],
)
def test_bad_settings_end_the_process_with_one_line(forks, flags, status, said) -> None:
    ended = forks.run("draft_service", "--port", "0", *flags)
    assert ended.status == status
    assert said in ended.output
    assert "Traceback" not in ended.output


def test_a_taken_port_for_metrics_is_refused(forks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = forks.run("draft_service", "--port", "0", "--metrics-port", str(port))
    assert ended.status == 1
    assert f"cannot listen on 127.0.0.1:{port}, --metrics-port: Address already in use" in ended.output
    assert "Traceback" not in ended.output
