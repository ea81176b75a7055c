import json

import pytest

from benchmarks.engine import __main__ as engine
from benchmarks.engine.sections import Sizes

SHAPE = {"hidden": 256, "layers": 2, "heads": 4, "kv-heads": 2, "head-dim": 64, "intermediate": 256, "vocab": 600,
         "context": 2048}  # fmt: skip
SIZES = Sizes(
    contexts=(16, 40),
    batches=(1, 3),
    batch_context=24,
    rows=(1, 3, 5),
    verify_batches=(1, 2),
    prompts=(20, 50),
    steps=3,
    prompt_rounds=2,
)


def options(tiny_model, output, sections, *more):
    shape = [part for name, size in SHAPE.items() for part in (f"--{name}", str(size))]
    return engine.parse(
        ["--device", "cpu", "--model", str(tiny_model), "--modes", "exact", "--prefill-chunk", "32", "--output",
         str(output), "--sections", sections, *shape, *more]
    )  # fmt: skip


@pytest.fixture(scope="module")
def measured(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    output = folder / "engine.json"
    engine.run(options(tiny_model, output, "plain,batch,verify,prefill"), SIZES)
    engine.run(options(tiny_model, output, "transformers", "--plot", str(folder / "rows.png")), SIZES)
    return folder


def rows(folder, mode, section):
    return json.loads((folder / "engine.json").read_text())["figures"][mode][section]["rows"]


def test_each_section_has_a_row_for_each_size(measured):
    assert [row["context"] for row in rows(measured, "exact", "plain")] == [16, 40]
    assert [row["batch"] for row in rows(measured, "exact", "batch")] == [1, 3]
    assert [row["prompt"] for row in rows(measured, "exact", "prefill")] == [20, 50]
    assert [(row["batch"], row["rows"]) for row in rows(measured, "exact", "verify")] == [
        (batch, rows) for batch in (1, 2) for rows in (1, 3, 5)
    ]


def test_steps_had_the_rows_and_tokens_that_they_are_reported_for(measured):
    for row in rows(measured, "exact", "verify"):
        assert row["nodes a step"] == row["batch"] * (row["rows"] - 1)
        assert row["steps with trees"] == (row["steps"] if row["rows"] > 1 else 0)
    for row in rows(measured, "exact", "batch"):
        assert row["tokens/s"] == pytest.approx(row["batch"] * 1000 / row["mean ms"], rel=1e-3)


def test_runs_gather_in_one_file_with_modes_side_by_side(measured):
    content = json.loads((measured / "engine.json").read_text())
    assert set(content["figures"]) == {"exact", "transformers"}
    assert content["figures"]["exact"]["plain"]["machine"]["torch"]
    assert content["figures"]["transformers"]["plain"]["rows"][0]["step ms"] > 0
    assert content["compared"]["plain"][0]["exact step ms"] > 0
    assert (measured / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_results_of_several_files_are_joined(measured, tmp_path):
    other = json.loads((measured / "engine.json").read_text())
    other["figures"] = {"fast": {"verify": other["figures"]["exact"]["verify"]}}
    (tmp_path / "fast.json").write_text(json.dumps(other))
    joined = tmp_path / "joined.json"
    arguments = ["--merge", str(measured / "engine.json"), str(tmp_path / "fast.json"), "--output", str(joined)]
    assert engine.main(arguments) == 0
    content = json.loads(joined.read_text())
    assert [row["exact / fast"] for row in content["compared"]["verify"]] == [1.0] * 6


def test_unknown_sections_are_refused(tiny_model, tmp_path):
    with pytest.raises(SystemExit):
        options(tiny_model, tmp_path / "x.json", "plain,nothing")


def test_transformers_computes_with_a_llamas_weights_alone(capsys):
    assert engine.parse([]).sections[-1] == "transformers"
    assert "transformers" not in engine.parse(["--shape", "llama-4-scout", "--format", "fp8"]).sections
    with pytest.raises(SystemExit):
        engine.parse(["--shape", "llama-4-scout", "--sections", "transformers"])
    assert "bfloat16 weights of a Llama's shape alone" in capsys.readouterr().err


def test_a_loop_has_room_for_what_its_sections_measure_and_no_more():
    large, small = Sizes().config(["plain", "batch", "verify"], 2048), Sizes().config(["prefill"], 512)
    assert (large.max_running, large.max_nodes, large.step_nodes) == (256, 64, 64 * 63)
    assert large.num_pages * large.page_size > 256 * 1500
    assert large.max_context > 32768 + 1000
    assert (small.max_running, small.step_nodes, small.prefill_chunk) == (1, 1, 512)


def test_a_cache_of_8_bits_is_a_mode(tiny_model, tmp_path):
    chosen = options(tiny_model, tmp_path / "engine.json", "batch", "--modes", "exact+fp8", "--batches", "1,2",
                     "--batch-context", "20")  # fmt: skip
    assert (chosen.batches, chosen.batch_context) == ((1, 2), 20)
    report = engine.run(chosen, Sizes(batches=(2,), batch_context=20, steps=2))
    assert [row["batch"] for row in report.figures["exact+fp8"]["batch"]["rows"]] == [2]
