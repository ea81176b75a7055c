"""The whole load test, small, on real services."""

from __future__ import annotations

import csv
import json
import subprocess
import sys


def test_both_doors_at_two_concurrencies(tiny_cluster, tmp_path):
    command = [sys.executable, "-m", "loadtest", "--host", tiny_cluster.http_url, "--grpc", tiny_cluster.gateway_grpc]
    command += [
        "--concurrency",
        "1,3",
        "--seconds",
        "60",
        "--requests",
        "6",
        "--max-tokens",
        "8",
        "--out",
        str(tmp_path),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert run.returncode == 0, run.stderr
    levels = json.loads((tmp_path / "levels.json").read_text())
    assert [(level["api"], level["concurrency"]) for level in levels] == [
        ("http", 1), ("http", 3), ("grpc", 1), ("grpc", 3)
    ]  # fmt: skip
    for level in levels:
        assert level["failures"] == 0, run.stderr
        assert level["answers"] >= 6
        assert 0 < level["ttft_p50_ms"] < 60_000
        assert level["tokens_per_second"] > 0
    with (tmp_path / "levels.csv").open() as sheet:
        assert len(list(csv.DictReader(sheet))) == 4
    for name in ("ttft_p50_ms", "tpot_p50_ms", "tokens_per_second"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_load_beyond_this_machine_is_refused():
    command = [sys.executable, "-m", "loadtest", "--host", "http://192.168.7.7:8000"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 2
    assert "--remote" in run.stderr
