"""`slipstream info` and `slipstream probe`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from launcher.cli.app import app
from launcher.cli.info import AdapterFacts, Facts, GatewayFacts, ProposerFacts, VerifyFacts, collect, from_here, render
from support.cluster import free_ports


def test_facts_name_processes_and_attachments(tiny_cluster):
    facts = collect(tiny_cluster.verify_address, tiny_cluster.http_url.removeprefix("http://"))
    processes = tiny_cluster.processes
    assert facts.complete
    assert facts.gateway.process_id == processes["gateway"].pid
    assert facts.verify.process_id == processes["verify"].pid
    assert [draft.process_id for draft in facts.drafts] == [processes["draft"].pid]
    assert {proposer.name: proposer.process_id for proposer in facts.verify.proposers} == dict.fromkeys(
        ("draft-model", "ngram"), processes["draft"].pid
    )
    assert {proposer.device for proposer in facts.verify.proposers} == {"cpu"}
    assert facts.drafts[0].verify_address == tiny_cluster.verify_address


def test_people_get_a_tree_and_programs_json(tiny_cluster, capsys):
    facts = collect(tiny_cluster.verify_address, tiny_cluster.http_url.removeprefix("http://"))
    render(facts, as_json=False)
    tree = capsys.readouterr().out
    assert f"pid {facts.verify.process_id}" in tree
    assert "the default" in tree
    render(facts, as_json=True)
    assert json.loads(capsys.readouterr().out)["verify"]["state"]["running"] == 0


COUNTERS = {"hits": 11, "waits": 12, "misses": 13, "late": 14, "stale_records": 15}
COUNTERS |= {"answer_us": 63_040, "deadline_us": 20_000}


def test_an_attachment_is_shown_with_what_became_of_its_trees(capsys):
    source = {"proposer": "suffix", "drafted": 30, "accepted": 20}
    drafter = {"epoch": 7, "proposer": "hybrid", "requests": 1, "drafted_tokens": 40, "accepted_tokens": 25}
    drafter |= COUNTERS
    state = dict.fromkeys(
        (
            "running",
            "queued",
            "pages_free",
            "pages_total",
            "drafted_tokens",
            "accepted_tokens",
            "steps",
            "committed_tokens",
        ),
        0,
    )
    verify = VerifyFacts("host:1", "serving", state=state, drafters=(drafter | {"sources": [source]},))
    render(Facts(GatewayFacts("host:2", "ok"), verify, ()), as_json=False)
    shown = capsys.readouterr().out
    assert "epoch 7 drafts hybrid for 1 requests: drafted 40, accepted 25 (62%)" in shown
    assert "trees: 11 hits, 12 waits, 13 missed, 14 late; 15 stale records" in shown
    assert "they take 63.0 ms, and are waited for up to 20.0 ms" in shown
    assert "from suffix: 30, accepted 20" in shown


def test_adapters_are_shown_with_the_requests_that_use_them(capsys):
    state = dict.fromkeys(("running", "queued", "pages_free", "pages_total"), 0)
    state |= dict.fromkeys(("drafted_tokens", "accepted_tokens", "steps", "committed_tokens"), 0)
    red = AdapterFacts("red", "red@1f", 8, "/adapters/red", leaving=True, running=1, waiting=2, requests=3)
    verify = VerifyFacts("host:1", "serving", state=state, max_adapters=4, max_adapter_rank=16, adapters=(red,))
    render(Facts(GatewayFacts("host:2", "ok"), verify, ()), as_json=False)
    shown = capsys.readouterr().out
    assert "adapters: 1 of at most 4, up to rank 16" in shown
    assert "adapter red@1f (/adapters/red), rank 8: running 1, queued 2, of 3 requests, to go" in shown


def test_placement_is_shown_by_device_and_gpu_and_transports_with_their_reason(capsys):
    state = dict.fromkeys(("running", "queued", "pages_free", "pages_total"), 0)
    state |= dict.fromkeys(("drafted_tokens", "accepted_tokens", "steps", "committed_tokens"), 0)
    proposer = ProposerFacts("eagle3", True, True, True, 5, "host:3", "cuda_ipc", 7, "cuda:1", "GPU-0b")
    other = ProposerFacts("ngram", True, True, True, 6, "host:4", "grpc", 8, transport_reason="shm: another user")
    both = (proposer, other)
    verify = VerifyFacts("host:1", "serving", device="cuda", gpu_uuid="GPU-0a", state=state, proposers=both)
    render(Facts(GatewayFacts("host:2", "ok"), verify, ()), as_json=False)
    shown = capsys.readouterr().out
    assert "on cuda (GPU-0a)" in shown
    assert "epoch 7, cuda_ipc, on cuda:1 (GPU-0b), pid 5" in shown
    assert "epoch 8, grpc (shm: another user), pid 6" in shown


def test_a_proposer_that_is_not_attached_is_shown_with_what_that_means(capsys):
    state = dict.fromkeys(("running", "queued", "pages_free", "pages_total"), 0)
    state |= dict.fromkeys(("drafted_tokens", "accepted_tokens", "steps", "committed_tokens"), 0)
    proposer = ProposerFacts("eagle3", True, False, True, None, "", "", None)
    verify = VerifyFacts("host:1", "serving", state=state, proposers=(proposer,))
    render(Facts(GatewayFacts("host:2", "ok"), verify, ()), as_json=False)
    shown = capsys.readouterr().out
    assert "proposer eagle3: not attached, the default; its requests are decoded plainly until it is" in shown


def test_a_gateway_is_found_by_a_name_that_it_does_not_know(tiny_cluster, monkeypatch):
    resolve = socket.getaddrinfo

    def resolved(host, *arguments, **options):
        return resolve("127.0.0.1" if host == "gateway.example" else host, *arguments, **options)

    monkeypatch.setattr("socket.getaddrinfo", resolved)
    address = f"gateway.example:{tiny_cluster.http_url.rpartition(':')[2]}"
    facts = collect(tiny_cluster.verify_address, address)
    assert facts.gateway == GatewayFacts(address, "ok", tiny_cluster.processes["gateway"].pid)


@pytest.mark.parametrize(
    ("address", "verify", "seen"),
    [
        ("127.0.0.1:3", "127.0.0.1:2", "127.0.0.1:3"),
        ("127.0.0.1:3", "verify:2", "verify:3"),
        ("127.0.0.1:3", "[2001:db8::7]:2", "[2001:db8::7]:3"),
        ("0.0.0.0:3", "localhost:2", "localhost:3"),
        ("10.77.0.3:3", "verify:2", "10.77.0.3:3"),
        ("draft:3", "verify:2", "draft:3"),
        ("nonsense", "verify:2", "nonsense"),
    ],
)
def test_a_draft_service_beside_a_remote_verify_service_is_looked_for_there(address, verify, seen):
    assert from_here(address, verify) == seen


def test_addresses_come_from_the_environment(monkeypatch, tiny_cluster):
    monkeypatch.setenv("SLIPSTREAM_VERIFY_ADDRESS", tiny_cluster.verify_address)
    monkeypatch.setenv("SLIPSTREAM_GATEWAY_ADDRESS", tiny_cluster.http_url.removeprefix("http://"))
    result = CliRunner().invoke(app, ["info", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.output)
    assert facts["verify"]["process_id"] == tiny_cluster.processes["verify"].pid


def test_silence_is_reported_and_fails():
    verify, gateway = free_ports(2)
    command = [sys.executable, "-m", "launcher", "info", "--verify", f"127.0.0.1:{verify}"]
    command += ["--gateway", f"127.0.0.1:{gateway}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert run.returncode == 1
    assert run.stdout.count("unreachable") == 2


def test_probe_turns_health_and_attachment_into_a_status(tiny_cluster):
    (nobody,) = free_ports(1)
    verify = tiny_cluster.verify_address
    asked = [
        (verify,), (tiny_cluster.gateway_grpc,), (f"127.0.0.1:{nobody}",),
        (verify, "--attached", "draft-model"), (verify, "--attached", "other"),
    ]  # fmt: skip
    statuses = [
        subprocess.run([sys.executable, "-m", "launcher", "probe", *each], check=False, timeout=180).returncode
        for each in asked
    ]
    assert statuses == [0, 0, 1, 0, 1]
