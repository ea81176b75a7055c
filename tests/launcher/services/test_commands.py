from __future__ import annotations

from pathlib import Path

import pytest

from launcher.services.commands import Layout, join_address, proposer_name, reachable, split_address
from support.certificates import write_certificates


def layout(**changes) -> Layout:
    values = {
        "model": Path("/models/target"),
        "draft": ("draft-model:/models/draft", "ngram"),
        "verify_address": "127.0.0.1:2",
        "draft_address": "127.0.0.1:3",
        "grpc_address": "0.0.0.0:1",
        "http_address": "0.0.0.0:8",
    }
    return Layout(**(values | changes))


def options(arguments: tuple[str, ...]) -> list[tuple[str, str]]:
    assert arguments[1] == "-m"
    return list(zip(arguments[3::2], arguments[4::2], strict=True))


def test_the_first_proposer_is_the_default():
    command = options(layout().verify.arguments)
    assert ("--proposers", "draft-model,ngram") in command
    assert ("--default-proposer", "draft-model") in command


def test_without_a_draft_verify_hears_of_no_proposer():
    names = [name for name, _ in options(layout(draft=()).verify.arguments)]
    assert names == ["--model", "--host", "--port"]


def test_the_drafter_hosts_all_proposers_and_dials_verify():
    command = options(layout().drafter.arguments)
    assert [value for name, value in command if name == "--proposers"] == ["draft-model:/models/draft", "ngram"]
    assert ("--verify", "127.0.0.1:2") in command


def test_proposers_of_the_verify_process_are_its_own_alone():
    mixed = layout(draft=("inproc:draft-model:/models/draft", "ngram", "inproc:mine=package.module:factory"))
    verify, drafter = options(mixed.verify.arguments), options(mixed.drafter.arguments)
    assert ("--proposers", "draft-model,ngram,mine") in verify
    assert ("--default-proposer", "draft-model") in verify
    own = [value for name, value in verify if name == "--inproc"]
    assert own == ["draft-model:/models/draft", "mine=package.module:factory"]
    assert [value for name, value in drafter if name == "--proposers"] == ["ngram"]
    assert [value for name, value in verify if name == "--expected-proposers"] == ["ngram"]
    assert layout(draft=("inproc:ngram",)).served == ()


def test_a_name_in_both_places_is_one_proposer_of_the_verify_service():
    both = layout(draft=("inproc:eagle3:/heads/a", "eagle3:/heads/b", "ngram"))
    assert both.proposers == ("eagle3", "ngram")
    assert both.served_names == ("eagle3", "ngram")
    verify = options(both.verify.arguments)
    assert ("--proposers", "eagle3,ngram") in verify
    assert [value for name, value in verify if name == "--inproc"] == ["eagle3:/heads/a"]
    served = [value for name, value in options(both.drafter.arguments) if name == "--proposers"]
    assert served == ["eagle3:/heads/b", "ngram"]


def test_the_gateway_is_asked_for_its_health_on_loopback():
    gateway = layout().gateway
    assert gateway.address == "127.0.0.1:1"
    assert ("--host", "0.0.0.0") in options(gateway.arguments)


def test_further_arguments_come_last_and_so_win():
    assert layout(verify_arguments=("--page-size", "1")).verify.arguments[-2:] == ("--page-size", "1")


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("ngram", "ngram"),
        ("draft-model:/a:b", "draft-model"),
        ("mine=package.module:factory:argument", "mine"),
        ("inproc:ngram", "ngram"),
    ],
)
def test_names_of_proposers(spec, name):
    assert proposer_name(spec) == name


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 5), ("::1", 6), ("localhost", 7)])
def test_addresses_survive_a_round_trip(host, port):
    assert split_address(join_address(host, port)) == (host, port)


def test_the_gateway_may_be_reached_through_files():
    gateway = layout(http_address="unix:/run/http.sock").gateway
    assert gateway.address == "127.0.0.1:1"
    assert options(gateway.arguments)[2:] == [("--uds", "/run/http.sock"), ("--host", "0.0.0.0"), ("--grpc-port", "1")]
    gateway = layout(grpc_address="unix:/run/grpc.sock").gateway
    assert gateway.address == "unix:/run/grpc.sock"
    assert options(gateway.arguments)[3:] == [("--http-port", "8"), ("--grpc-uds", "/run/grpc.sock")]
    gateway = layout(health_socket=Path("/run/health.sock")).gateway
    assert gateway.address == "unix:/run/health.sock"
    assert ("--health-uds", "/run/health.sock") in options(gateway.arguments)


def test_a_gateway_that_waits_for_drafters_has_started_before_it_serves():
    waiting = layout(wait_for_drafter=60.0).gateway
    assert ("--wait-for-drafter", "60") in options(waiting.arguments)
    assert waiting.serves_later
    assert not layout().gateway.serves_later
    assert "--wait-for-drafter" not in layout().gateway.arguments


def test_files_of_tls_go_to_every_service_and_no_key_is_shown(tmp_path):
    files = write_certificates(tmp_path, "slipstream.test")
    secured = layout(tls=files.files)
    for command in (secured.verify, secured.drafter, secured.gateway):
        assert set(options(command.arguments)) >= set(zip(files.tls_flags[::2], files.tls_flags[1::2], strict=True))
        assert "PRIVATE KEY" not in repr(command)
    assert secured.verify.tls == secured.drafter.tls == files.tls()
    assert secured.gateway.tls is None  # its own ports are not those of services


def test_wildcards_are_reached_on_loopback():
    assert [reachable(address) for address in ("0.0.0.0:1", "[::]:2", "127.0.0.3:3")] == [
        "127.0.0.1:1", "[::1]:2", "127.0.0.3:3"
    ]  # fmt: skip
