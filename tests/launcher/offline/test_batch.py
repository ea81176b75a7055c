"""Many outputs together: what stops them all, seen from a verify service that answers as told."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.offline.batch import BatchItem, complete
from slipstream import Client
from slipstream.completion import Options, SpeculationOptions
from slipstream.rpc.errors import ResourceExhaustedError
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.models import write_tokenizer

STALLED = BatchItem([65, 66], Options(max_tokens=9, ignore_eos=True, timeout=300))
REFUSED = BatchItem([65, 66], Options(speculation=SpeculationOptions(proposer="busy")))
"""The fake service takes no request for this proposer."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeVerify, Client]]:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, vocab_size=512, max_context=512)
    with (
        FakeVerify() as verify,
        GatewayProcess(folder, verify.address) as gateway,
        Client(gateway.grpc_address) as client,
    ):
        yield verify, client


def test_yields_every_output_under_its_index(served: tuple[FakeVerify, Client]) -> None:
    verify, client = served
    verify.reset()
    jobs = [BatchItem([65, 66], Options(max_tokens=count, ignore_eos=True)) for count in range(1, 80)]
    done = dict(complete(client, jobs))
    assert [len(done[index].token_ids) for index in range(79)] == list(range(1, 80))
    assert list(complete(client, [])) == []


def test_the_first_failure_cancels_the_rest(served: tuple[FakeVerify, Client]) -> None:
    verify, client = served
    verify.reset(stall_after=1)
    began = time.monotonic()
    with pytest.raises(ResourceExhaustedError, match="queue is full"):
        list(complete(client, [STALLED, STALLED, REFUSED]))
    assert time.monotonic() - began < 100
    verify.wait_for(lambda seen: len(seen.cancels) == len(seen.submits) - 1)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that was started in the background may ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_cancels_what_runs(served: tuple[FakeVerify, Client]) -> None:
    verify, client = served
    verify.reset(stall_after=1)

    def interrupt() -> None:
        verify.wait_for(lambda seen: len(seen.submits) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(complete(client, [STALLED, STALLED]))
    thread.join()
    verify.wait_for(lambda seen: len(seen.cancels) == 2)
