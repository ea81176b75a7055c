"""Answers that text workers write, where they end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.text.jobs import Jobs
from gateway.text.prepared import Prepared, WorkerTask
from slipstream.prefix_hash import hash_prompt
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import gateway_pb2
from support.virtual_verify import INFO

WIDE = replace(INFO, max_context=4_000_000)


def test_an_answer_that_would_dwarf_its_request_is_refused(tokenizer_folder: Path) -> None:
    """A token takes a few bytes of the request, and as many as its name has of the answer."""
    jobs = Jobs.load(tokenizer_folder, max_bytes=1, max_choices=1, stages=lambda file: None)

    def asked(job: WorkerTask, body: str) -> bytes:
        answer = jobs.run(job, bytearray(body, "ascii"), WIDE)
        assert isinstance(answer, bytes)
        return answer

    name = "<|user|>"
    (token,) = json.loads(asked(WorkerTask.TOKENIZE_HTTP, json.dumps({"prompt": name})))["tokens"]
    few, many = (f'{{"tokens":[{token}{f",{token}" * (count - 1)}]}}' for count in (500_000, 2_200_000))
    assert json.loads(asked(WorkerTask.DETOKENIZE_HTTP, few)) == {"prompt": name * 500_000}
    with pytest.raises(InvalidArgumentError, match="more than 16777216 bytes") as caught:
        asked(WorkerTask.DETOKENIZE_HTTP, many)
    assert caught.value.field == "tokens"


def test_calls_of_earlier_answers_may_not_make_more_values_than_a_body_may(tokenizer_folder: Path) -> None:
    jobs = Jobs.load(tokenizer_folder, max_bytes=1, max_choices=1, stages=lambda file: None)
    function = {"name": "f", "arguments": json.dumps({"a": [{}] * 100})}
    calls = [{"id": "a", "type": "function", "function": function}] * 50
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]
    with pytest.raises(InvalidArgumentError, match="at most 3072 lists and objects") as caught:
        jobs.run(WorkerTask.TOKENIZE_HTTP, bytearray(json.dumps({"messages": messages}), "ascii"), WIDE)
    assert caught.value.field == "messages"
    messages[1]["tool_calls"] = calls[:20]
    assert jobs.run(WorkerTask.TOKENIZE_HTTP, bytearray(json.dumps({"messages": messages}), "ascii"), WIDE)


def test_prompts_are_hashed_where_services_tell_of_their_caches(tokenizer_folder: Path) -> None:
    jobs = Jobs.load(tokenizer_folder, max_bytes=1, max_choices=9, stages=lambda file: None)
    body = bytearray(json.dumps({"model": "tiny", "prompt": ["one two three four five six", "x"]}), "ascii")
    for info in (INFO, replace(INFO, page_size=2)):
        silent = jobs.run(WorkerTask.COMPLETION, bytearray(body), info)
        assert isinstance(silent, Prepared)
        assert silent.hashes == (None, None)
    told = jobs.run(WorkerTask.COMPLETION, bytearray(body), replace(INFO, page_size=2, watched=True))
    assert isinstance(told, Prepared)
    assert told.hashes == tuple(hash_prompt(prompt, 2) for prompt in told.prompts)
    assert told.hashes[0] is not None
    assert told.hashes[0].hashes
    request = gateway_pb2.GenerateRequest(text="one two three four five six").SerializeToString()
    single = jobs.run(WorkerTask.GENERATE, bytearray(request), replace(INFO, page_size=2, watched=True))
    assert isinstance(single, Prepared)
    assert single.hashes == (hash_prompt(single.prompts[0], 2),)
