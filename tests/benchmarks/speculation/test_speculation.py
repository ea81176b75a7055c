import json

import pytest
from safetensors.torch import load_file, save_file

from benchmarks.speculation import __main__ as speculation
from benchmarks.speculation.acceptance_profile import Profile, best_shape
from support import eagle_heads

SHAPE = {"hidden": 400, "layers": 7, "heads": 4, "kv-heads": 2, "head-dim": 64, "intermediate": 192, "vocab": 700,
         "context": 512, "draft-vocab": 64}  # fmt: skip
SMALL = {"batches": "1,2", "prompt-tokens": 20, "steps": 4, "settle": 2, "tokens": 8, "trial-tokens": 4,
         "per-category": 1, "concurrency": "1,2", "rows": "4", "step-nodes": 16, "prefill-chunk": 64,
         "deadline-ms": 60000, "trees": "chain=2/1/3,tree=2/2/6"}  # fmt: skip


def arguments(tiny_model, folder, *more):
    flags = [part for name, value in (SHAPE | SMALL).items() for part in (f"--{name}", str(value))]
    named = ["--model", str(tiny_model), "--output", str(folder / "out.json"), "--plot", str(folder / "plot.png")]
    return ["--device", "cpu", *named, *flags, *more]


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    """A head for the model, prompts, and the results of both parts."""
    folder = tmp_path_factory.mktemp("speculation")
    layout = eagle_heads.Layout("eagle3", draft_vocab=60, head_dim=64, rename={"layers.0.": "midlayer."})
    shape = eagle_heads.Shape(hidden=128, intermediate=96, heads=2, kv_heads=1, vocab=512)
    eagle_heads.write_head(folder / "head", layout, shape, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    file = folder / "head" / "model.safetensors"
    tensors = load_file(file)
    save_file({name: each.bfloat16() if each.is_floating_point() else each for name, each in tensors.items()}, file)
    asked = [("qa", "Who?"), ("math", "What is 6 times 7?"), ("qa", "Is it late?")]
    records = [
        {"question_id": number, "category": category, "turns": [text]} for number, (category, text) in enumerate(asked)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, records)))
    text = ["--head", str(folder / "head"), "--prompts", str(folder / "prompts.jsonl")]
    assert speculation.main(arguments(tiny_model, folder, *text)) == 0
    return folder


def rows(folder, section):
    return json.loads((folder / "out.json").read_text())["sections"][section]["rows"]


def test_every_batch_has_a_row_for_plain_decoding_and_each_drafter_fixed_and_controlled(folder):
    kinds = ["chain", "chain, controller", "tree", "tree, controller"]
    found = [(row["batch"], row["drafter"]) for row in rows(folder, "rounds")]
    assert found == [(1, "plain"), (2, "plain"), *((batch, kind) for batch in (1, 2) for kind in kinds)]


def test_rounds_are_those_of_trees_that_are_right_as_often_as_is_said(folder):
    measured = rows(folder, "rounds")
    assert all(row["missed trees"] == 0 for row in measured)
    for row in measured:
        if row["drafter"] in ("chain", "tree"):
            assert row["nodes a round"] == row["batch"] * (2 if row["drafter"] == "chain" else 5)
            assert 1.0 < row["acceptance"] <= 3.0
    plain = {row["batch"]: row["tokens/s"] for row in measured if row["drafter"] == "plain"}
    for row in measured:
        assert row["x plain"] == pytest.approx(row["tokens/s"] / plain[row["batch"]])
    (tree,) = (row for row in measured if (row["drafter"], row["batch"]) == ("tree", 1))
    assert tree["set acceptance"] == best_shape(Profile(0.7), nodes=5, depth=2, width=2).expected_length


def test_text_is_answered_alike_with_and_without_trees_and_told_by_category(folder):
    measured = rows(folder, "categories")
    assert [row["category"] for row in measured] == ["qa", "multi-turn conversation", "all"]
    for row in measured:
        assert row["equal answers"] == row["answers"]
        assert row["acceptance"] >= 1.0
        assert row["rounds without a tree"] < 1.0
    assert measured[-1]["answers"] == 2
    assert [(row["drafter"], row["rows"]) for row in rows(folder, "trees")] == [("chain", 3), ("tree", 4), ("tree", 6)]


def test_concurrency_is_swept_with_speculation_off_and_on(folder):
    measured = rows(folder, "concurrency")
    assert [(row["concurrency"], row["speculation"]) for row in measured] == [
        (concurrency, speculation) for speculation in ("off", "on") for concurrency in (1, 2)
    ]
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_part_measured_again_takes_the_place_of_what_the_file_had(folder, tiny_model):
    before = json.loads((folder / "out.json").read_text())["sections"]
    again = ["--parts", "rounds", "--batches", "1", "--steps", "2", "--trees", "chain=2/1/3", "--drafter", "process"]
    assert speculation.main(arguments(tiny_model, folder, *again)) == 0
    sections = json.loads((folder / "out.json").read_text())["sections"]
    assert {row["batch"] for row in sections["rounds"]["rows"]} == {1}
    assert sections["rounds"]["settings"]["drafter"] == "process"
    assert sections["categories"] == before["categories"]


def test_text_needs_a_head_and_prompts(tiny_model, tmp_path):
    with pytest.raises(SystemExit):
        speculation.parse(arguments(tiny_model, tmp_path))
    with pytest.raises(SystemExit):
        speculation.parse(arguments(tiny_model, tmp_path, "--parts", "nothing"))


def test_a_head_that_does_not_fit_is_told_before_anything_is_made(folder, tiny_model, tmp_path, capsys):
    named = ["--head", str(folder / "head"), "--prompts", str(folder / "prompts.jsonl"), "--draft-vocab", "50"]
    assert speculation.main(arguments(tiny_model, tmp_path, *named)) == 1
    assert "scores 60 tokens" in capsys.readouterr().err
