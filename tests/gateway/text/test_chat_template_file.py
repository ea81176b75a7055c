"""A chat template that the operator names, for a model that has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from slipstream.client import Client
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

MESSAGE = {"role": "user", "content": "Hi"}


def test_the_file_writes_the_conversations_of_both_apis(make_folder: Any, tmp_path: Path, verify: FakeVerify) -> None:
    folder: Path = make_folder()
    (folder / "tokenizer_config.json").write_text("{}")
    file = tmp_path / "mine.jinja"
    file.write_text("Q:{{ messages[0].content }} A:{{ [].missing.missing if messages[0].content == 'fail' }}")
    with GatewayProcess(folder, verify.address, "--chat-template", str(file)) as gateway:

        def ask(content: str) -> httpx.Response:
            body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 1}
            return httpx.post(f"{gateway.http_url}/v1/chat/completions", json=body, timeout=60)

        assert ask("Hi").status_code == 200
        with Client(gateway.grpc_address) as client:
            wanted = client.tokenize("Q:Hi A:", timeout=60)
            assert client.tokenize(messages=[MESSAGE], timeout=60) == wanted
        assert list(verify.seen.submits[-1].prompt_token_ids) == wanted
        refused = ask("fail")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
        assert "the chat template refuses the messages" in refused.json()["error"]["message"]
