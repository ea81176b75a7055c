from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from benchmarks.quantised_quality import main
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from support.models import SENTENCES, make_tiny_model


def test_figures_of_fewer_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_tiny_model(tmp_path / "source")
    for name in ("fp8", "w4a16"):
        quantise_folder(source, tmp_path / name, RoundedFormat(name, 64))  # type: ignore[arg-type]
    lines = [{"text": SENTENCES[0]}, {"messages": [{"role": "user", "content": SENTENCES[1]}]}, {"other": 1}]
    texts = tmp_path / "texts.jsonl.xz"
    texts.write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    folders = [str(tmp_path / name) for name in ("fp8", "w4a16")]
    output = tmp_path / "out.json"
    assert main(["--texts", str(texts), "--model", str(source), "--output", str(output), "--fp8-cache", *folders]) == 0
    assert "bits per byte" in capsys.readouterr().out
    found = json.loads(output.read_text())
    original, eight, four, cache, *both = found["rows"]
    assert cache["model"] == "source, KV cache in fp8" and len(both) == 2
    assert 0 < cache["mean_divergence_nats"] < both[1]["mean_divergence_nats"]
    assert original["mean_divergence_nats"] == 0 and original["same_likeliest"] == 1
    assert 0 < eight["mean_divergence_nats"] < four["mean_divergence_nats"]
    assert found["bytes"] > len(SENTENCES[0]) + len(SENTENCES[1])
    assert 1 < original["bits_per_byte"] < 20  # random weights know nothing


def test_figures_of_activations_of_8_bits(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    quantise_folder(source, tmp_path / "fp8", RoundedFormat("fp8"))
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": sentence}) for sentence in SENTENCES[:2]))
    output = tmp_path / "out.json"
    common = ["--texts", str(texts), "--model", str(source), "--output", str(output), "--fp8-activations"]
    assert main([*common, str(tmp_path / "fp8")]) == 0
    rows = {row["model"]: row["mean_divergence_nats"] for row in json.loads(output.read_text())["rows"]}
    forms = "", ", activations in bfloat16", ", activations in fp8"
    weights, passes, activations = (rows[f"fp8{form}"] for form in forms)
    assert 0 < weights < activations
    assert passes == pytest.approx(weights, rel=0.2)
