"""Expressions of the dashboard and the alerts, and a Prometheus that evaluates them, where there is one."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from support.cluster import free_ports
from support.compose import DEPLOY

RULES = DEPLOY / "prometheus" / "rules.yml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
ACCEPT = {"Accept": "application/openmetrics-text;version=1.0.0"}
OF_PROMETHEUS = {"up"}
"""What Prometheus itself records of a target."""

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}
_NOT_NAMES = re.compile(r'"[^"]*"|\{[^{}]*\}|\[[^\[\]]*\]|\b(?:by|on|ignoring|group_left|group_right)\s*\([^()]*\)')
_WORD = re.compile(r"[a-zA-Z_][\w:]*")
_KEYWORDS = {"and", "or", "unless", "sum", "max", "min", "avg", "count", "rate", "increase", "resets", "vector",
             "histogram_quantile", "max_over_time"}  # fmt: skip


def metric_names(expression: str) -> set[str]:
    """Names of series in an expression: every word that is neither of the language nor a label."""
    plain = _NOT_NAMES.sub(" ", _NOT_NAMES.sub(" ", expression.replace("$quantile", "0.9")))
    return set(_WORD.findall(plain)) - _KEYWORDS


def alerts() -> list[dict[str, Any]]:
    """The alerts of rules.yml."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    """Panels of a dashboard, rows included."""
    return json.loads(dashboard.read_text())["panels"]


def expressions(dashboard: Path, interval: str = "$__rate_interval") -> list[str]:
    """All expressions of a dashboard's panels."""
    found = [target["expr"] for panel in panels(dashboard) for target in panel.get("targets", ())]
    return [each.replace("$__rate_interval", interval).replace("$quantile", "0.95") for each in found]


def scrape(url: str) -> set[str]:
    """Names of series that a service exports, in OpenMetrics; a labelled one counts before it has its first value."""
    families = text_string_to_metric_families(httpx.get(url, headers=ACCEPT, timeout=60).raise_for_status().text)
    return {family.name + suffix for family in families for suffix in _SUFFIXES[family.type]}


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, str]) -> Iterator[httpx.Client]:
    """Prometheus with the shipped configuration, but for addresses by job and the intervals. A client of its API."""
    config = yaml.safe_load(CONFIG.read_text()) | {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "rules.yml").write_text(RULES.read_text())
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
               f"--web.listen-address={address}", "--enable-feature=exemplar-storage"]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", timeout=60) as client:
            yield client
    finally:
        process.terminate()
        process.wait(60)


def query(client: httpx.Client, expression: str) -> list[dict[str, Any]]:
    """The series of an instant query. AssertionError if Prometheus does not understand it."""
    answer = client.get("/query", params={"query": expression}).json()
    assert answer["status"] == "success", (expression, answer)
    found = answer["data"]["result"]
    return found if answer["data"]["resultType"] == "vector" else [{"value": found}]


def wait_for_samples(client: httpx.Client, jobs: int, seconds: float = 60.0) -> None:
    """Wait until each job has been scraped often enough for a rate."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            up = query(client, "count_over_time(up[1m]) >= 4 and up == 1")
        except (httpx.HTTPError, AssertionError):
            up = []
        if len(up) == jobs:
            return
        assert time.monotonic() < deadline, up
        time.sleep(0.2)
