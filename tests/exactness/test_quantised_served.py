"""A quantised model served, with speculation, against the bfloat16 model that it decodes to, served plainly."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

from benchmarks.exactness.cells import Count, EngineSetting
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from support.ask import ask, jobs
from support.cluster import Cluster

PROPOSERS = ("ngram", "draft-model", "")


def decoded(folder: Path, target: Path) -> Path:
    """The same model in bfloat16."""
    skipped = shutil.ignore_patterns("*.safetensors", "*.index.json")
    shutil.copytree(folder, target, ignore=skipped)
    save_file(load_tensors(folder, ModelConfig.from_folder(folder)), target / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("name", ["fp8", "w4a16"])
@pytest.mark.slow
def test_answers_are_those_of_the_decoded_model(
    name: str, demo_model: Path, demo_draft_model: Path, tmp_path: Path
) -> None:
    quantise_folder(demo_model, tmp_path / "model", RoundedFormat(name, 64))  # type: ignore[arg-type]
    quantise_folder(demo_draft_model, tmp_path / "draft", RoundedFormat(name, 64))  # type: ignore[arg-type]
    work = [job for length in (5, 90) for job in jobs(2, tokens=32, length=length)]
    with Cluster(decoded(tmp_path / "model", tmp_path / "plain")) as cluster:
        reference = ask(cluster, work, concurrency=1)
    draft = ("ngram", f"draft-model:{tmp_path / 'draft'}")
    arguments = (*EngineSetting().verify_args(256), "--draft-deadline-ms", "5000")
    with Cluster(tmp_path / "model", draft=draft, verify_args=arguments) as cluster:
        answers = iter(ask(cluster, [replace(job, proposer=each) for job in work for each in PROPOSERS]))
    counts = {each: Count() for each in PROPOSERS}
    for index, answer in enumerate(reference):
        for each in PROPOSERS:
            counts[each].add(f"{index}", next(answers), answer)
    assert sum(count.mismatches for count in counts.values()) == 0, counts
    assert counts["draft-model"].drafted > 50
