"""The recipe from a corpus to files, tiny: the loss falls, the folder is served, and the head drafts for it."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from support.ask import ask, jobs, tokens_of
from support.cluster import Cluster
from training.demo_models.experts.__main__ import HEAD_NAME, TARGET_NAME, main
from training.demo_models.experts.settings import MixtureRecipe, parse

SIZES = {
    "vocab_size": 320, "hidden_size": 32, "heads": 1, "head_dim": 32, "intermediate_size": 32, "row_length": 128,
    "batch_rows": 4, "target_steps": 40, "target_seconds": 1000, "matrix_lr": 0.05, "polish_steps": 0,
    "head_answers": 16, "answer_tokens": 12, "head_steps": 3, "head_rows": 2, "head_row_length": 128,
    "head_intermediate_size": 32, "head_heldout": 4,
}  # fmt: skip


def write_corpus(folder: Path) -> None:
    """Conversations that are easy to learn, in the form of the demo model's corpus."""
    for name, count in (("corpus", 160), ("heldout", 12)):
        with lzma.open(folder / f"{name}.jsonl.xz", "wt", encoding="utf-8") as file:
            for index in range(count):
                messages = [
                    {"role": "user", "content": f"one rider past {index % 7} hills"},
                    {"role": "assistant", "content": "the road of the slipstream carries another along a road"},
                ]
                source = ("dolly-15k", "opentriviaqa")[index % 2]
                record: dict[str, Any] = {"source": source, "kind": "chat", "messages": messages}
                if index % 8 == 7:
                    record = {"source": "python-peps", "kind": "text", "text": "the road carries one rider along. " * 3}
                file.write(json.dumps(record) + "\n")


def test_the_demo_mixture_has_the_active_size_of_the_demo_model() -> None:
    shape = MixtureRecipe().target
    dense = shape.hidden_size * 3 * 1024
    assert shape.experts_per_token * shape.intermediate_size == 1024
    assert shape.parameters > shape.active_parameters > shape.layers * dense
    with pytest.raises(SystemExit):
        parse(["--corpus", "a"])


def test_a_corpus_becomes_a_mixture_with_a_head_that_drafts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_corpus(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    out = tmp_path / "out"
    places = ["--corpus", tmp_path, "--output", out, "--tokenizer", tmp_path / "tokenizer.json"]
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        main([*map(str, places), "--device", "cpu", "--no-compile", "--workers", "1", *sizes])
    finally:
        torch.set_num_threads(threads)
    report = json.loads((out / "run" / "report.json").read_text())
    assert report["heldout"]["answers"]["overall"]["nats_per_token"] < 5.2  # log(320) is 5.77
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in report["shares"]) and len(report["shares"]) == 8
    config = ModelConfig.from_folder(out / TARGET_NAME)
    assert config.form.experts is not None and config.form.experts.count == 8
    head = f"eagle3:{out / HEAD_NAME}:target={out / TARGET_NAME}"
    with Cluster(out / TARGET_NAME, draft=(head,), verify_args=("--draft-deadline-ms", "5000")) as cluster:
        work = jobs(2, tokens=24, vocabulary=(10, 300))
        plain, drafted = ask(cluster, work), ask(cluster, [replace(job, proposer="eagle3") for job in work])
    assert tokens_of(plain) == tokens_of(drafted)
    assert all(answer.drafted > 0 for answer in drafted)
