import json
from dataclasses import replace

import pytest

from benchmarks.boundary import __main__
from benchmarks.boundary.rounds import Round, lengths, percentile, rounds
from benchmarks.boundary.settings import Measured, Setting, settings_of
from benchmarks.boundary.tables import OVER, behind_passes, compared, rows_of, text_of
from benchmarks.boundary.worker import measure
from benchmarks.inflate.shape import Shape
from support.eagle_heads import EAGLE3, write_head
from support.eagle_heads import Shape as HeadShape

SHAPE = Shape(256, 2, 4, 2, 64, 256, 600, 512)


def measured_in(folder, tiny_model, settings):
    return Measured(
        place="cpu", device="cpu", draft_device="cpu", settings=settings, weights="folder", model=str(tiny_model),
        shape=SHAPE, engine_mode="exact", size=1 << 16, requests=1, rounds=4, settle=2, deadline=30.0,
        continuations=str(folder / "known.json"), folder=str(folder), attach_seconds=100.0,
    )  # fmt: skip


def parts_of(each: Round):
    return each.verify, each.to_draft, each.drafting, each.back


@pytest.fixture(scope="module")
def rows(tiny_model, tmp_path_factory):
    settings = settings_of(("inproc", "shm"), ("lockstep",), states=True, tree=(4, 2), right=1)
    return list(measure(measured_in(tmp_path_factory.mktemp("place"), tiny_model, settings)))


def test_every_setting_has_a_row_with_the_acceptance_that_was_asked_for(rows):
    assert [(row["transport"], row["mode"], row["note"]) for row in rows] == [
        ("", "plain", ""), ("inproc", "lockstep", ""), ("shm", "lockstep", "")
    ]  # fmt: skip
    assert [(row["drafted"], row["accepted"], row["tokens a round"]) for row in rows] == [
        (0, 0, 1), (3, 1, 2), (3, 1, 2)
    ]  # fmt: skip
    for row in rows[1:]:
        assert row["hits"] == 1.0
        assert row["rounds"] == 4
        assert row["states received"] > 4


def test_the_parts_of_a_round_are_the_round(rows):
    for row in rows[1:]:
        assert row["rounds split"] >= 3
        parts = [row[name] for name in ("verify us", "to_draft us", "drafting us", "back us")]
        assert min(parts) > 0
        assert max(parts) < 1e3 * max(row["round times ms"])


def test_the_same_proposer_in_process_is_what_others_are_compared_with(rows):
    plain, beside, apart = compared(rows)
    assert plain[OVER] is None
    assert beside[OVER] == 0
    assert apart[OVER] == pytest.approx(1e3 * (apart["round ms"] - beside["round ms"]))


def test_results_of_several_places_are_shown_together(rows, tmp_path):
    files = []
    for place, failure in (("slicing", ""), ("mps", "not done in 150 s")):
        content = {"places": {place: {"rows": [row | {"place": place} for row in rows], "failure": failure}}}
        files.append(tmp_path / f"{place}.json")
        files[-1].write_text(json.dumps(content | {"options": {}}))
    output, plot = tmp_path / "both.json", tmp_path / "both.png"
    names = list(map(str, files))
    assert __main__.main(["--merge", *names, "--output", str(output), "--plot", str(plot)]) == 1
    assert plot.read_bytes().startswith(b"\x89PNG")
    content = json.loads(output.read_text())
    assert "one GPU, MPS: not done in 150 s" in text_of(content)
    assert [row["place"] for row in rows_of(content)] == ["slicing"] * 3 + ["mps"] * 3


def test_a_setting_that_fails_says_so_and_the_others_go_on(tiny_model, tmp_path):
    good = Setting("inproc", "lockstep", states=False, rows=3, depth=1, right=1)
    _, first, second = measure(measured_in(tmp_path, tiny_model, (replace(good, depth=0), good)))
    assert "division" in first["note"]
    assert first["round ms"] is None
    assert second["accepted"] == 1


def test_a_place_without_mps_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    content = __main__.run(__main__.parse(["--places", "mps"]))
    assert "MPS is not to be had here" in text_of(content)


def test_behind_passes_there_are_states_and_no_other_transports_than_those_of_the_gpu():
    transports = ("inproc", "cuda_ipc", "shm")
    settings = settings_of(transports, ("lockstep", "behind"), states=False, tree=(16, 5), right=4)
    assert [(each.transport, each.mode, each.states) for each in settings] == [
        ("inproc", "lockstep", False), ("shm", "lockstep", False), ("inproc", "behind", True),
        ("cuda_ipc", "behind", True),
    ]  # fmt: skip
    assert len({each.name for each in settings}) == 4


def test_states_alone_go_through_the_gpus_memory_and_sleep_is_compared_in_lockstep():
    transports = ("cuda_ipc", "shm", "grpc")
    settings = settings_of(transports, ("lockstep",), states=True, tree=(9, 3), right=2, asleep=True)
    assert [(each.transport, each.mode, each.spins) for each in settings] == [
        ("cuda_ipc", "lockstep", True), ("shm", "lockstep", True), ("grpc", "lockstep", True),
        ("cuda_ipc", "lockstep", False), ("shm", "lockstep", False),
    ]  # fmt: skip
    assert len({each.name for each in settings}) == 5


def test_rounds_are_split_where_one_call_for_trees_lies_between_decision_and_trees():
    commits = [(0.0, 0.1), (1.0, 1.1), (2.0, 2.1), (3.0, 3.1)]
    collections = [(0.2, 0.5), (1.2, 1.6), (2.2, 2.3)]
    drafted = [(0.15, 0.4), (1.2, 1.5)]
    found = rounds(commits, collections, drafted, (0.0, 3.0))
    assert parts_of(found[0]) == pytest.approx((0.5, 0.15, 0.25, 0.1))
    assert parts_of(found[1]) == pytest.approx((0.4, 0.2, 0.3, 0.1))
    assert len(found) == 2
    assert rounds(commits, collections, drafted, (0.5, 2.0)) == found[1:]
    assert lengths(collections, (1.0, 3.0)) == pytest.approx([0.4, 0.1])


def test_percentiles_are_values_that_occurred():
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 1.0) == 3.0


def test_a_head_behind_the_pass_is_compared_with_itself_in_process(tiny_model, tmp_path):
    head, sizes = tmp_path / "head", json.loads((tiny_model / "config.json").read_text())
    write_head(head, EAGLE3["whole vocabulary"], HeadShape(sizes["hidden_size"], 96, 4, 2, sizes["vocab_size"]))
    settings = settings_of(("inproc", "shm"), ("behind",), states=True, tree=(4, 2), right=1)
    assert [(each.transport, each.mode, each.states) for each in settings] == [("inproc", "behind", True)]
    measured = replace(measured_in(tmp_path, tiny_model, settings), head=f"{head}:target={tiny_model}:boundaries=0-1-2")
    _, row = measure(measured)
    assert row["note"] == ""
    assert row["drafted"] > 0
    assert row["states received"] > 0


def test_the_time_between_is_what_neither_pass_nor_draft_took():
    alone = {"place": "mps", "mode": "lockstep", "rows": 8, "pass us": 4000.0}
    behind = {"place": "mps", "mode": "behind", "rows": 8, "pass us": 5000.0, "device round us": 5100.0}
    drafted = behind | {"draft GPU us": 900.0}
    first, second = behind_passes([alone, drafted, drafted | {"rows": 4}])
    assert (first["pass us"], first["idle between us"]) == (4000.0, 200.0)
    assert second["idle between us"] is None
