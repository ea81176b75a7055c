"""A storm of some seconds over a real server."""

import json

import pytest

from benchmarks.chaos.__main__ import main, parse
from support.models import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """With room for the longest prompts of the mix."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "roomy", max_context=4096)


@pytest.mark.slow
def test_a_short_storm_changes_no_answer(model, tmp_path):
    output = tmp_path / "chaos.json"
    brief = ["--minutes", "0.08", "--calm-seconds", "1", "--clients", "4", "--questions", "9", "--longest", "60"]
    storm = ["--events", "verify,draft,stop", "--verify-kill-seconds", "2.4", "--draft-kill-seconds", "2"]
    main([*brief, *storm, "--stop-seconds", "2", "--model", str(model), "--output", str(output)])
    found = json.loads(output.read_text())
    # How fast, how long and which connections a machine under other load keeps is not looked at here.
    requests = found["requests"]
    assert requests["answered"] > 9
    assert requests["differing"] == 0
    assert requests["not_allowed"] == 0, requests["examples"]
    assert found["left_behind"]
    assert not any(found["left_behind"].values())
    assert found["services_started_again"]["verify"] >= 1
    assert found["services_started_again"]["draft"] >= 1
    assert set(found["processes"]) == {"launcher", "gateway", "verify", "draft"}


def test_unknown_events_are_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["--events", "verify,flood"])
    assert "unknown flood" in capsys.readouterr().err


def test_it_wants_a_draft_service(model):
    for draft in ("none", "inproc:ngram"):
        with pytest.raises(SystemExit, match="one of a draft service"):
            main(["--model", str(model), "--draft", draft])
