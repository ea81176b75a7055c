"""`slipstream serve` with TLS at every door, and the commands that speak to it."""

from __future__ import annotations

import json

import httpx
import pytest
from typer.testing import CliRunner

from benchmarks.lib.server_process import start_server
from launcher.cli.app import app
from launcher.cli.info import collect
from launcher.services.commands import Layout
from launcher.services.free_ports import free_ports
from launcher.services.process import ServiceProcess, Spawner
from launcher.services.readiness import is_serving, served_folder
from launcher.supervision.liveness_probe import LivenessProbe
from launcher.supervision.serve import greeting
from support.ask import wait_until
from support.certificates import write_certificates


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    return write_certificates(tmp_path_factory.mktemp("public"))


@pytest.fixture(scope="module")
def inner(tmp_path_factory):
    """Issued for a name that nothing here is dialled by."""
    return write_certificates(tmp_path_factory.mktemp("inner"), "slipstream.test")


@pytest.fixture(scope="module")
def served(tiny_model, public, inner, tmp_path_factory):
    flags = (*public.ssl_flags, "--ssl-ca-certs", str(public.ca), "--ssl-cert-reqs", "2", *inner.tls_flags)
    log = tmp_path_factory.mktemp("serve") / "log"
    server = start_server(tiny_model, ("ngram",), log, "--model-name", "tiny", "--drain-seconds", "2", *flags)
    try:
        yield server
    finally:
        assert server.stop() == 0
        server.process.stdout.close()


def slipstream(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_clients_with_a_certificate_are_answered(served, public):
    base = served.http.replace("http://", "https://")
    assert f"HTTP       {base}/v1" in served.greeting
    body = {"model": "tiny", "prompt": [5, 6], "max_tokens": 4}
    with httpx.Client(verify=public.context(), timeout=60) as client:
        assert client.post(f"{base}/v1/completions", json=body).status_code == 200
    own = public.tls_flags[:-2]
    asked = ("chat", "--address", served.grpc, "--message", "x", "--max-tokens", "3")
    assert "3 tokens" in slipstream(*asked, *own)[1]
    assert slipstream(*asked, *own[:2])[0] == 1


def test_services_are_asked_with_a_certificate_of_theirs(served, public, inner, tiny_model):
    gateway = served.http.replace("http://", "https://")
    status, printed = slipstream("info", "--json", "--verify", served.verify, "--gateway", gateway, *inner.tls_flags)
    facts = json.loads(printed)
    assert facts["verify"]["status"] == facts["drafts"][0]["status"] == "serving"
    assert [each["attached"] for each in facts["verify"]["proposers"]] == [True]
    assert (status, facts["gateway"]["status"]) == (1, "unreachable"), "its certificate is of another authority"
    assert collect(served.verify, gateway, public.files).gateway.process_id == served.pids()["gateway"]
    for address in (served.verify, served.draft):
        assert slipstream("probe", address, *inner.tls_flags)[0] == 0
        assert not is_serving(address)
    assert slipstream("probe", served.verify, "--attached", "ngram", *inner.tls_flags)[0] == 0
    assert slipstream("swap-draft", served.draft, *inner.tls_flags)[0] == 0
    assert served_folder(served.verify, 60.0, inner.tls()) == tiny_model


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("tls_ca",), "--tls-ca needs --tls-cert and --tls-key"),
        (("tls_cert", "tls_key"), "--tls-cert and --tls-key need --tls-ca"),
        (("tls_ca", "tls_cert"), "--tls-cert and --tls-key go together"),
    ],
)
def test_half_of_the_files_is_refused(monkeypatch, inner, given, words):
    files = {"tls_ca": inner.ca, "tls_cert": inner.cert, "tls_key": inner.key}
    for name in given:
        monkeypatch.setenv(f"SLIPSTREAM_{name.upper()}", str(files[name]))
    monkeypatch.setenv("COLUMNS", "200")
    status, printed = slipstream("serve", "--draft", "none")
    assert status == 2
    assert words in printed


@pytest.mark.parametrize(
    ("http", "flags", "lines"),
    [
        ("0.0.0.0:8", (), ("http://127.0.0.1:8/v1\n", "curl -N http://127.0.0.1:8/v1", "--address 127.0.0.1:1\n")),
        (
            "0.0.0.0:8",
            ("--ssl-certfile", "c"),
            (
                "https://127.0.0.1:8/v1\n",
                "curl -N --cacert CA_FILE https://127.0.0.1:8/v1",
                "--address 127.0.0.1:1 --tls-ca CA_FILE\n",
            ),
        ),
        ("unix:/run/my http", (), ("curl -N --unix-socket '/run/my http' http://localhost/v1/chat",)),
    ],
)
def test_the_greeting_says_how_to_get_in(tiny_model, http, flags, lines):
    layout = Layout(tiny_model, (), "127.0.0.1:2", "127.0.0.1:3", "0.0.0.0:1", http, gateway_arguments=flags)
    for line in lines:
        assert line in greeting(layout, "tiny")


def test_the_pulse_of_a_service_is_felt(inner, tmp_path):
    """One that is alone: a draft service, as it starts fastest."""
    command = Layout(
        model=tmp_path,
        draft=("ngram",),
        verify_address="127.0.0.1:1",
        draft_address=f"127.0.0.1:{free_ports(1)[0]}",
        grpc_address="",
        http_address="",
        tls=inner.files,
    ).drafter
    service = ServiceProcess(command, Spawner())
    try:
        wait_until(lambda: is_serving(command.address, 10.0, command.tls), service.log)
        probe = LivenessProbe(service)
        assert not probe.failed(40.0, 0.0)
        assert probe._answered
        probe.close()
    finally:
        service.kill()
