"""Hosts' clocks differ, and jump: what is decided by time is decided by the monotonic clock of one process."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVING = ("gateway", "verify_service", "draft_service", "launcher", "kernels/slipstream_kernels", "protos/slipstream")
WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"}
SHOWN = {
    "gateway/openai/output.py": "the field `created` of answers",
    "protos/slipstream/chat_template.py": "strftime_now of chat templates",
    "protos/slipstream/rpc/logs.py": "the time of a line",
    "protos/slipstream/tracing/otel.py": "the times of spans",
    "verify_service/server/metrics/adapter_metrics.py": "the value of a metric",
}
"""The only ones that ask for the time of day, and what they show it as."""


def asks_the_time_of_day(source):
    if not any(name in source for name in ("time.", "from time", "date.")):
        return False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in {"time", "datetime", "date"} and node.attr in WALL:
                return True
        elif isinstance(node, ast.ImportFrom) and node.module == "time" and WALL & {each.name for each in node.names}:
            return True
    return False


def test_the_time_of_day_is_shown_and_decides_nothing():
    files = [path for folder in SERVING for path in (ROOT / folder).rglob("*.py") if "_pb2" not in path.name]
    asking = {str(path.relative_to(ROOT)) for path in files if asks_the_time_of_day(path.read_text("utf-8"))}
    assert asking == set(SHOWN)


def test_a_use_of_the_time_of_day_is_seen():
    assert asks_the_time_of_day("import time\nlimit = time.time() + 5")
    assert asks_the_time_of_day("from time import time")
    assert not asks_the_time_of_day("import time\nlimit = time.monotonic() + 5")
