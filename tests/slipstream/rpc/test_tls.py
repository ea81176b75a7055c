"""TLS between services: both ends show certificates of one authority."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.rpc.channel import open_channel, open_sync_channel
from slipstream.rpc.server import GrpcServer
from slipstream.rpc.tls import Tls, check_files
from support.certificates import Certificates, write_certificates

FLAGS = ("--cert", "--key", "--ca")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def verify(tmp_path_factory, authority) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("verify"), "verify.test", authority)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("stranger"), "verify.test")


def outcomes(server: Tls, clients: list[Tls | grpc.ChannelCredentials | None]) -> list[str]:
    """What the health check of each client comes to, in both kinds of channel."""

    def ask(port: int, tls: Tls | grpc.ChannelCredentials | None) -> str:
        with open_sync_channel(f"127.0.0.1:{port}", tls=tls) as channel:
            try:
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
            except grpc.RpcError as error:
                return error.code().name
            return "OK"

    async def ask_async(port: int, tls: Tls | grpc.ChannelCredentials | None) -> str:
        async with open_channel(f"127.0.0.1:{port}", tls=tls, token="x") as channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return "OK"

    async def scenario() -> list[str]:
        grpc_server = GrpcServer(
            host="127.0.0.1",
            port=0,
            services=[],
            register=lambda server: None,
            credentials=server.server_credentials(),
        )
        port = await grpc_server.start()
        found = [(await asyncio.to_thread(ask, port, tls), await ask_async(port, tls)) for tls in clients]
        await grpc_server.drain(0)
        assert all(one == other for one, other in found)
        return [one for one, _ in found]

    return asyncio.run(scenario())


def test_only_peers_with_a_certificate_of_the_same_authority_come_together(verify, stranger) -> None:
    own = verify.tls()
    without = replace(own, chain=b"", key=b"")
    misnamed = replace(own, server_name="")
    foreign = replace(stranger.tls(), authority=own.authority)
    assert outcomes(own, [own, without, misnamed, foreign, stranger.tls(), None]) == ["OK", *["UNAVAILABLE"] * 5]


def test_an_address_that_the_certificate_is_issued_for_needs_no_other_name(tmp_path, authority, verify) -> None:
    local = write_certificates(tmp_path, "127.0.0.1", authority)
    assert outcomes(local.tls(), [replace(verify.tls(), server_name="")]) == ["OK"]


def test_files_that_are_not_what_they_should_be_are_named(verify, stranger, tmp_path: Path) -> None:
    check_files(verify.cert, verify.key, verify.ca, FLAGS)
    check_files(None, None, verify.ca, FLAGS)
    missing = tmp_path / "missing"
    for files, words in (
        ((verify.cert, None, None), "--cert and --key go together"),
        ((missing, verify.key, None), "--cert: cannot read .*missing: No such file"),
        ((verify.cert, stranger.key, None), "--cert, --key: .* are no certificate in PEM and its key"),
        ((verify.key, verify.key, None), "--cert, --key: .* are no certificate"),
        ((None, None, verify.key), "--ca: .* holds no certificate in PEM"),
    ):
        with pytest.raises(ValueError, match=words):
            check_files(*files, FLAGS)


def test_a_key_behind_a_password_is_refused_without_a_question(verify, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as forms

    key = forms.load_pem_private_key(verify.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.BestAvailableEncryption(b"password"))
    )
    with pytest.raises(ValueError, match="without a password"):
        check_files(verify.cert, locked, None, FLAGS)
