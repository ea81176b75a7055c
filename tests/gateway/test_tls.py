"""A gateway that speaks TLS to clients, and to a verify service that does."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import httpx
import openai
import pytest

from slipstream import Client
from slipstream.rpc.errors import SlipstreamError, UnavailableError
from support.ask import wait_until
from support.certificates import Certificates, write_certificates
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.raw_http import request, statuses

CONNECTIONS = 6
HEAD_SECONDS = 2.0
READER_SECONDS = 4.0
LONG = {"model": "tiny", "prompt": "abc", "max_tokens": 400, "ignore_eos": True, "stream": True}


@dataclass
class Secured:
    gateway: GatewayProcess
    verify: FakeVerify
    files: Certificates

    def connect(self, *, own: bool = True) -> ssl.SSLSocket:
        return self.files.context(own=own).wrap_socket(self.dial(), server_hostname="127.0.0.1")

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.gateway.http_url.rpartition(":")[2])), 60)

    def credentials(self) -> grpc.ChannelCredentials:
        return self.files.tls().channel_credentials()


@pytest.fixture(scope="module")
def shared(tokenizer_folder, tmp_path_factory) -> Iterator[Secured]:
    public = write_certificates(tmp_path_factory.mktemp("public"))
    inner = write_certificates(tmp_path_factory.mktemp("inner"), "verify.test")
    flags = (*public.ssl_flags, "--ssl-ca-certs", str(public.ca), "--ssl-cert-reqs", "2", *inner.tls_flags)
    limits = (
        "--max-connections",
        str(CONNECTIONS),
        "--head-seconds",
        str(HEAD_SECONDS),
        "--reader-seconds",
        str(READER_SECONDS),
    )
    with (
        FakeVerify(tls=inner.tls()) as verify,
        GatewayProcess(tokenizer_folder, verify.address, *flags, *limits, context=public.context()) as gateway,
    ):
        yield Secured(gateway, verify, public)
        assert "Traceback" not in gateway.logs
        assert "no effect" not in gateway.logs


@pytest.fixture
def secured(shared: Secured) -> Secured:
    shared.verify.reset()
    return shared


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while data := connection.recv(65536):
            answer += data
    except OSError:
        pass
    return answer


def test_the_official_client_streams_over_https(secured: Secured) -> None:
    http, url = httpx.Client(verify=secured.files.context()), f"{secured.gateway.http_url}/v1"
    with http, openai.OpenAI(base_url=url, api_key="none", http_client=http) as client:
        stream = client.completions.create(model="tiny", prompt="abc", max_tokens=300, stream=True)
        assert "".join(part.choices[0].text for part in stream if part.choices) == "abc" * 100


def test_clients_without_a_certificate_are_refused_where_one_is_required(secured: Secured) -> None:
    with secured.connect(own=False) as connection:  # whose part of the handshake ends before the server has looked
        connection.sendall(request("GET", "/health"))
        assert not read_all(connection)
    with (
        Client(secured.gateway.grpc_address, root_certificate=secured.files.ca) as client,
        pytest.raises(UnavailableError),
    ):
        client.list_models()
    with Client(secured.gateway.grpc_address, credentials=secured.credentials()) as client:
        assert client.generate("abc", max_tokens=3).text == "abc"


def test_neither_port_speaks_plain_text(secured: Secured) -> None:
    with secured.dial() as connection:
        connection.sendall(request("GET", "/health"))
        assert not statuses(read_all(connection))
    with Client(secured.gateway.grpc_address) as client, pytest.raises(SlipstreamError):
        client.list_models()


@pytest.mark.parametrize("how", ["close", "shutdown", "close_notify"])
def test_a_client_that_leaves_ends_its_request(secured: Secured, how: str) -> None:
    """TLS has no halves: one that ends its sending side has left."""
    secured.verify.reset(step_seconds=0.05)
    connection = secured.connect()
    connection.sendall(request("POST", "/v1/completions", LONG))
    while b"data:" not in connection.recv(65536):
        pass
    if how == "close":
        connection.close()
    elif how == "shutdown":
        socket.socket.shutdown(connection, socket.SHUT_WR)
    else:
        connection.setblocking(False)
        with contextlib.suppress(ssl.SSLWantReadError):  # unless the answer to it is there at once
            connection.unwrap()
    secured.verify.wait_for(lambda seen: len(seen.cancels) == 1)
    connection.close()


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (request("GET", "/health", headers={"x": "a" * 70_000}), 431),
        (request("GET", "/" + "a" * 9000), 414),
    ],
)
def test_what_is_refused_before_anybody_looks_at_it_gets_its_answer(secured: Secured, raw: bytes, status: int) -> None:
    with secured.connect() as connection:
        connection.sendall(raw)
        answer = connection.recv(65536)
        assert statuses(answer) == [status], answer


def test_the_connection_of_a_refused_client_that_stays_is_closed(secured: Secured) -> None:
    with secured.connect() as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        begun = time.monotonic()
        assert statuses(read_all(connection)) == [400]
        assert time.monotonic() - begun < 30


def test_a_handshake_has_the_time_of_a_head_and_does_not_keep_others_out(secured: Secured) -> None:
    silent: list[socket.socket] = []

    def served_in_time() -> bool:
        begun = time.monotonic()
        silent.extend(secured.dial() for _ in range(4 * CONNECTIONS + 1))
        silent[-1].sendall(b"\x16\x03\x01\x02\x00\x01")  # half of its part
        wait_until(lambda: healthy(secured), "nobody is served", 60)
        return time.monotonic() - begun < HEAD_SECONDS

    wait_until(served_in_time, "silent connections keep others out")
    begun = time.monotonic()
    for connection in silent:
        assert not read_all(connection)
        connection.close()
    assert time.monotonic() - begun < 10 * HEAD_SECONDS


def healthy(secured: Secured) -> bool:
    with secured.gateway.http_client() as client:
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "abc", "max_tokens": 3})
        return answer.status_code == 200


def test_a_request_may_come_with_the_end_of_the_handshake(secured: Secured) -> None:
    """In one packet, and with more behind it than one read takes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = secured.files.context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    prompt = "a" * 300_000
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
    with secured.dial() as connection:
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        connection.sendall(outgoing.read())
        while True:
            incoming.write(connection.recv(65536))
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
        client.write(request("POST", "/v1/completions", body))
        connection.sendall(outgoing.read())
        answer = b""
        while b"\r\n\r\n" not in answer:
            incoming.write(connection.recv(65536))
            try:
                answer += client.read(65536)
            except ssl.SSLWantReadError:
                continue
    assert statuses(answer) == [400]  # the context is 512 tokens


def test_clients_that_do_not_answer_lose_their_connection(secured: Secured) -> None:
    """One that reads nothing, after the time of a reader; one that says nothing, without its part of the farewell."""
    with secured.connect() as reader, secured.connect() as silent:
        begun = time.monotonic()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(request("POST", "/v1/completions", LONG | {"n": 60, "logprobs": 5}))
        beneath = socket.socket(fileno=silent.detach())
        beneath.settimeout(60)
        with beneath:
            while beneath.recv(65536):
                pass
        assert time.monotonic() - begun < HEAD_SECONDS + READER_SECONDS
        wait_until(lambda: open_connections(secured) == 1, "it stays", 60)


def open_connections(secured: Secured) -> int:
    """As the gateway counts them, that of the question included."""
    with secured.gateway.http_client() as client:
        lines = client.get("/metrics").text.splitlines()
    return next(
        int(float(line.split()[1])) for line in lines if line.startswith("slipstream_gateway_http_connections ")
    )
