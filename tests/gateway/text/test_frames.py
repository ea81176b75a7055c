"""Requests and answers as they cross a worker's socket, whole or in parts."""

from __future__ import annotations

import socket
import threading

import pytest

from gateway.core.request import Sampling
from gateway.text.frames import ANSWER, read_answer, read_request, request_head, write_answer
from gateway.text.prepared import Prepared, WorkerTask, token_array
from slipstream.generation_types import SpeculationOptions
from slipstream.prefix_hash import PromptHashes


@pytest.mark.parametrize("parts", [1, 3, 200])
def test_a_request_is_read_however_its_bytes_arrive(parts: int) -> None:
    payload = bytes(range(256)) * 1024
    frame = request_head(WorkerTask.GENERATE, b"facts", payload) + payload
    ours, theirs = socket.socketpair()
    with theirs:

        def send() -> None:
            with ours:
                at = [*range(1, parts), len(frame)]
                for begin, end in zip([0, *at], at, strict=False):
                    ours.sendall(frame[begin:end])

        sending = threading.Thread(target=send)
        sending.start()
        request = read_request(theirs)
        sending.join()
        assert request == (WorkerTask.GENERATE, b"facts", payload)
        assert read_request(theirs) is None


@pytest.mark.parametrize("cut", [0, 4, 12, 100])
def test_a_request_that_breaks_off_is_none(cut: int) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall((request_head(WorkerTask.CHAT, b"facts", bytes(100)) + bytes(100))[:cut])
        assert read_request(theirs) is None


def test_what_is_prepared_crosses_unchanged() -> None:
    prepared = Prepared(
        prompts=(token_array([1, 2, 2**32 - 1]), token_array([])),
        sampling=Sampling(temperature=0.5, logit_bias={7: -1.0}, stop_token_ids=(3,), max_tokens=9, logprobs=2),
        wires=(b"wire", b""),
        hashes=(PromptHashes(16, [2**64 - 1, 5]), None),
        prompt_field="prompt",
        speculation=SpeculationOptions(enabled=True, proposer="ngram", max_nodes=3),
        stop=("a", "b"),
        tenant="somebody",
        adapter_id="adapter",
        choice_index=4,
        choices=5,
        echoes=("text", ""),
        stream=True,
        include_usage=True,
        return_token_ids=True,
        prompt_logprobs=6,
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        write_answer(theirs, prepared)
        received = ours.recv(65536)
    assert ANSWER.unpack_from(received) == (0, len(received) - ANSWER.size)
    assert read_answer(received[ANSWER.size :]) == prepared
