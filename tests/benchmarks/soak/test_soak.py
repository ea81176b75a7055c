"""Some seconds of load on a real server."""

import json

import pytest

from benchmarks.soak.__main__ import main
from support.models import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """With room for the longest prompts of the mix."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "roomy", max_context=4096)


@pytest.mark.slow
def test_a_short_run_is_measured_whole(model, tmp_path):
    output, picture = tmp_path / "soak.json", tmp_path / "soak.png"
    brief = ["--minutes", "0.1", "--capacity-seconds", "1", "--clients", "4", "--longest", "40"]
    where = ["--model", str(model), "--output", str(output), "--plot", str(picture)]
    # Times of a machine that others use say nothing in seconds; failures and what processes hold do.
    main([*brief, *where, "--load", "0.3", "--sample-seconds", "0.3", "--p50-ratio", "99", "--p99-ratio", "99"])
    found = json.loads(output.read_text())
    assert found["failures"] == {}
    assert sum(quarter["answered"] for quarter in found["quarters"]) > 4
    assert found["capacity"]["requests_per_second"] * 0.3 == pytest.approx(found["requests_per_second"])
    assert set(found["processes"]) == {"launcher", "gateway", "verify", "draft"}
    assert all(process["same_process"] for process in found["processes"].values())
    assert all(process["pss_mib"][0] for process in found["processes"].values())
    assert picture.exists()
    assert output.stat().st_size < 200_000
