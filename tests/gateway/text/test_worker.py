"""Which threads a text worker works with."""

from __future__ import annotations

import os
import sys

import httpx
import psutil
import pytest

from support.gateway_process import GatewayProcess


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
def test_grammars_are_checked_by_a_thread_that_lets_others_go_first(gateway: GatewayProcess) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1, "structured_outputs": {"regex": "a|b"}}
    assert httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=60).status_code == 200
    (server,) = psutil.Process(gateway.process.pid).children()
    own = os.getpriority(os.PRIO_PROCESS, server.pid)
    workers = server.children()
    assert workers
    for worker in workers:
        above = [os.getpriority(os.PRIO_PROCESS, thread.id) - own for thread in worker.threads()]
        assert above.count(0) == len(above) - 1, "all that tokenises and renders goes as before"
        assert max(above) > 0 or own >= 10
