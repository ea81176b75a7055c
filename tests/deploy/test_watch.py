"""What the profile `watch` brings: every figure that it shows or alerts on is one that services export."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from slipstream.rpc.vllm_metrics import GATEWAY_NAMES, VERIFY_NAMES
from support.cluster import Cluster, free_ports
from support.compose import DEPLOY, ROOT, compose
from support.prometheus import (
    CONFIG,
    DASHBOARDS,
    OF_PROMETHEUS,
    RULES,
    alerts,
    expressions,
    metric_names,
    panels,
    prometheus,
    query,
    scrape,
    wait_for_samples,
)

ALERT_TESTS = Path(__file__).parent / "alerts_test.yml"
NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"
)
NEEDS_PROMETHEUS = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs a Prometheus: apt-get install prometheus"
)
EMPTY_AT_REST = re.compile(
    r"slipstream_gateway_(requests_total\{|text_worker_ends|pause_seconds|loop_hold_seconds)|draft_wait_seconds"
)
"""What has no value as long as nothing fails, pauses, hangs or waits."""
ADAPTERS_ALONE = "slipstream_lora_requests_info"
"""What only services with room for LoRA adapters publish."""


@pytest.fixture(scope="module")
def services(tiny_model: Path) -> Iterator[dict[str, str]]:
    """Where a gateway and a verify service with a drafter, which have served requests, are scraped, by job."""
    port = free_ports(1)[0]
    names = ("--metrics-names", "vllm")
    verify = ("--metrics-port", str(port), "--draft-deadline-ms", "5000", *names)
    with Cluster(tiny_model, draft=("ngram",), verify_args=verify, gateway_args=names) as cluster:
        ask(cluster.http_url)
        yield {"gateway": cluster.http_url.removeprefix("http://"), "verify": f"127.0.0.1:{port}"}


def ask(url: str) -> None:
    """Requests whose answers repeat themselves, so that drafts are accepted."""
    for n in (1, 2):
        body = {"model": "tiny-target", "prompt": "a b a b a b a b a b", "max_tokens": 48, "temperature": 0, "n": n,
                "ignore_eos": True, "speculation": {"enabled": True, "proposer": "ngram"}}  # fmt: skip
        httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()


@pytest.fixture(scope="module")
def exported(services: dict[str, str]) -> set[str]:
    return set.union(*(scrape(f"http://{address}/metrics") for address in services.values()))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_shows_what_services_export(dashboard: Path, exported: set[str]) -> None:
    named = set[str]().union(*map(metric_names, expressions(dashboard)))
    assert len(named) > 40
    assert not named - exported


def test_alerts_are_about_what_services_export(exported: set[str]) -> None:
    for alert in alerts():
        named = metric_names(alert["expr"])
        assert named
        assert not named - exported - OF_PROMETHEUS, alert["alert"]


def test_an_unknown_metric_would_be_found() -> None:
    expression = 'sum by (le) (rate(a_total{job=~"x|y"}[5m])) / on () group_left () max(b:c) > 2 and d == 0'
    assert metric_names(expression) == {"a_total", "b:c", "d"}


def test_all_of_vllm_names_are_exported(services: dict[str, str]) -> None:
    for job, names in (("gateway", GATEWAY_NAMES), ("verify", VERIFY_NAMES)):
        found = {name for name in scrape(f"http://{services[job]}/metrics") if name.startswith("vllm:")}
        assert found
        wanted = {name for own, name in names.items() if own != ADAPTERS_ALONE}
        assert not [name for name in wanted if not {name, f"{name}_total", f"{name}_bucket"} & found]


@NEEDS_PROMETHEUS
def test_prometheus_takes_and_evaluates_all_of_it(services: dict[str, str], tmp_path: Path) -> None:
    with prometheus(tmp_path, services) as client:
        wait_for_samples(client, len(services))
        ask(f"http://{services['gateway']}")
        wait_for_samples(client, len(services))
        for expression in (each for dashboard in DASHBOARDS for each in expressions(dashboard, "1m")):
            assert query(client, expression) or EMPTY_AT_REST.search(expression), expression
        rules = client.get("/rules").json()["data"]["groups"]
        assert {rule["name"] for group in rules for rule in group["rules"]} == {each["alert"] for each in alerts()}
        assert not {rule["name"] for group in rules for rule in group["rules"] if rule["health"] == "err"}
        assert not query(client, 'ALERTS{alertstate="firing"}')
        assert query(client, "vllm:spec_decode_num_accepted_tokens_per_pos_total")
        window = {"query": "slipstream_gateway_first_token_seconds_bucket", "start": "0", "end": "9999999999"}
        exemplars = client.get("/query_exemplars", params=window).json()["data"]
        assert all(each["labels"]["request_id"] for series in exemplars for each in series["exemplars"])
        assert exemplars


@NEEDS_PROMTOOL
def test_promtool_accepts_rules_and_configuration() -> None:
    for command in (["check", "rules", str(RULES)], ["check", "config", str(CONFIG)]):
        run = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False, timeout=120)
        assert run.returncode == 0, run.stdout + run.stderr


@NEEDS_PROMTOOL
def test_alerts_fire_when_they_should_and_only_then() -> None:
    run = subprocess.run(
        ["promtool", "test", "rules", str(ALERT_TESTS)], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_alert_is_tested_graded_and_explained() -> None:
    names = [alert["alert"] for alert in alerts()]
    tested = yaml.safe_load(ALERT_TESTS.read_text())["tests"]
    cases = [case for test in tested for case in test["alert_rule_test"]]
    assert len(set(names)) == len(names)
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == set(names)
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == set(names)
    assert {alert["labels"]["severity"] for alert in alerts()} == {"page", "ticket"}
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert not [name for name in names if f"`{name}`" not in page]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported_anywhere(dashboard: Path) -> None:
    board = json.loads(dashboard.read_text())
    assert "id" not in board
    assert board["uid"] == dashboard.stem
    variables = {each["name"]: each["type"] for each in board["templating"]["list"]}
    assert variables["DS_PROMETHEUS"] == "datasource"
    shown = panels(dashboard)
    assert len({panel["id"] for panel in shown}) == len(shown)
    for panel in shown:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        sources = [panel.get("datasource"), *(target["datasource"] for target in panel.get("targets", ()))]
        assert panel["type"] == "row" or all(source["uid"] == "${DS_PROMETHEUS}" for source in sources)
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in shown)
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(set(cells)) == len(cells)


def test_containers_find_each_other_and_their_files() -> None:
    services = compose()["services"]
    targets = {
        job["job_name"]: job["static_configs"][0]["targets"]
        for job in yaml.safe_load(CONFIG.read_text())["scrape_configs"]
    }
    assert targets == {"gateway": ["gateway:8000"], "verify": ["verify:50062"]}
    assert "--allowed-hosts=gateway" in services["gateway"]["command"]
    for name in ("verify", "verify-gpu", "verify-inproc", "verify-gpu-inproc"):
        assert services[name]["environment"]["SLIPSTREAM_VERIFY_METRICS_PORT"] == "50062"
        assert services[name]["networks"]["watch"] == {"aliases": ["verify"]}
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "slipstream.yml").read_text())["providers"]
    mounted = {
        volume["target"]: volume["source"] for volume in services["grafana"]["volumes"] if isinstance(volume, dict)
    }
    assert mounted == {
        "/etc/grafana/provisioning": "./grafana/provisioning",
        provider["options"]["path"]: "./grafana/dashboards",
    }
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).parent == Path(provider["options"]["path"])
    assert (DEPLOY / "grafana" / "dashboards" / Path(home).name).is_file()
