"""Verify services that a directory names, marks as draining and names no more: seen through a gateway process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream import Client
from slipstream.rpc.errors import UnavailableError
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

LONG = {"ignore_eos": True, "max_tokens": 40, "seed": 3, "min_tokens": 2}


class Members:
    """A file that lists verify services."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *verify: FakeVerify, draining: FakeVerify | None = None, epoch: int = 0) -> None:
        text = "".join(
            f"[[members]]\naddress = '{each.address}'\nepoch = {epoch}\ndraining = {str(each is draining).lower()}\n"
            for each in verify
        )
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)

    @property
    def flags(self) -> tuple[str, str]:
        return "--directory", f"file:{self.path}"


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path / "members.toml")


@pytest.fixture
def two() -> Iterator[tuple[FakeVerify, FakeVerify]]:
    with FakeVerify() as first, FakeVerify() as second:
        yield first, second


def wait_for(what: str, gateway: GatewayProcess, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while what not in gateway.logs:
        assert time.monotonic() < deadline, gateway.logs
        time.sleep(0.05)


def test_members_come_and_go(tokenizer_folder: Path, members: Members, two: tuple[FakeVerify, FakeVerify]) -> None:
    first, second = two
    with (
        GatewayProcess(tokenizer_folder, None, *members.flags, wait_ready=False) as gateway,
        Client(gateway.grpc_address) as client,
    ):
        with pytest.raises(UnavailableError):
            client.generate("x", **LONG)
        members.write(first)
        gateway.wait_ready()
        client.generate("x", **LONG)
        assert first.seen.submits
        members.write(first, second)
        wait_for(f"verify service {second.address} serves", gateway)
        members.write(second)
        wait_for(f"names verify service {first.address} no more", gateway)
        first.reset()
        for _ in range(3):
            client.generate("x", **LONG)
        assert (len(first.seen.submits), len(second.seen.submits)) == (0, 3)
        members.path.write_text("")
        wait_for("the last list stays", gateway)
        members.path.write_text("[[")
        wait_for("cannot be read", gateway)
        client.generate("x", **LONG)


@pytest.mark.parametrize("named", [True, False])
def test_streams_of_a_draining_member_move_without_a_changed_token(
    tokenizer_folder: Path, members: Members, two: tuple[FakeVerify, FakeVerify], named: bool
) -> None:
    members.write(*two)
    with (
        GatewayProcess(tokenizer_folder, None, *members.flags) as gateway,
        Client(gateway.grpc_address) as client,
    ):
        for verify in two:
            wait_for(f"verify service {verify.address} serves", gateway)
        undisturbed = client.generate("Hello there", **LONG)
        for verify in two:
            verify.reset(step_seconds=0.2)
        stream = client.stream("Hello there", **LONG)
        events = [next(stream) for _ in range(5)]
        serving = next(verify for verify in two if verify.seen.submits)
        other = next(verify for verify in two if verify is not serving)
        members.write(*(two if named else (other,)), draining=serving)
        other.wait_for(lambda seen: bool(seen.submits))
        serving.wait_for(lambda seen: bool(seen.cancels))
        other.script.step_seconds = 0.0
        events += stream
        serving.reset()
        client.generate("x", **LONG)
        assert not serving.seen.submits
    assert tuple(token for event in events for token in event.token_ids) == undisturbed.token_ids
    assert "".join(event.text for event in events) == undisturbed.text
    resumed = other.seen.submits[0]
    assert tuple(resumed.output_token_ids) == undisturbed.token_ids[: len(resumed.output_token_ids)]


def test_streams_that_can_go_nowhere_end_where_they_are(tokenizer_folder: Path, members: Members) -> None:
    with FakeVerify() as first, FakeVerify(fingerprint="0" * 64) as second:
        members.write(first)
        with (
            GatewayProcess(tokenizer_folder, None, *members.flags) as gateway,
            Client(gateway.grpc_address) as client,
        ):
            undisturbed = client.generate("Hello there", **LONG)
            first.reset(step_seconds=0.1)
            stream = client.stream("Hello there", **LONG)
            events = [next(stream) for _ in range(3)]
            members.write(second)
            wait_for(f"verify service {second.address} serves", gateway)
            first.script.step_seconds = 0.0
            events += stream
            wait_for(f"names verify service {first.address} no more", gateway)
            assert client.generate("Hello there", **LONG).token_ids
            assert len(second.seen.submits) == 1
    assert tuple(token for event in events for token in event.token_ids) == undisturbed.token_ids
    assert len(first.seen.submits) == 1


def test_another_epoch_is_another_process_at_the_address(tokenizer_folder: Path, members: Members) -> None:
    with FakeVerify() as verify:
        members.write(verify, epoch=1)
        with GatewayProcess(tokenizer_folder, None, *members.flags) as gateway:
            members.write(verify, epoch=2)
            wait_for("epoch=2", gateway)
            wait_for(f"names verify service {verify.address} no more", gateway)
            gateway.wait_ready()
            with Client(gateway.grpc_address) as client:
                client.generate("x", **LONG)
