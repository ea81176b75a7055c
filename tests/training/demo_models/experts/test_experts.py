"""The recipe from a corpus to files, tiny: the loss falls, the folder is served, and the head drafts for it."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from support.ask import ask, jobs, tokens_of
from support.cluster import Cluster
from training.common.mixture_model import MixtureLM
from training.common.model import initialise
from training.common.model_shape import MixtureShape
from training.demo_models import states
from training.demo_models.experts import head
from training.demo_models.experts.__main__ import HEAD_NAME, TARGET_NAME, main
from training.demo_models.experts.head import answered, features
from training.demo_models.experts.settings import MixtureRecipe, parse
from training.demo_models.losses import balanced_loss
from training.demo_models.prepare import ANSWER, Documents
from training.demo_models.progress import Progress
from training.demo_models.target import TargetTraining

SIZES = {
    "vocab_size": 320, "hidden_size": 32, "heads": 1, "head_dim": 32, "intermediate_size": 32, "row_length": 256,
    "batch_rows": 2, "target_steps": 40, "target_seconds": 1000, "matrix_lr": 0.05, "polish_steps": 4,
    "polish_prompts": 8, "head_answers": 16, "answer_tokens": 12, "head_steps": 3, "head_rows": 2,
    "head_row_length": 128, "head_intermediate_size": 32, "head_heldout": 4, "seconds": 4000,
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


def test_a_run_that_is_short_of_time_does_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    lengths = np.full(40, 12, dtype=np.int32)
    documents = Documents(
        tokens=generator.integers(10, 300, 480).astype(np.uint16),
        types=np.tile(np.array([0] * 6 + [ANSWER] * 6, dtype=np.uint8), 40),
        lengths=lengths,
        kinds=np.zeros(40, dtype=np.uint8),
        sources=np.zeros(40, dtype=np.uint8),
        content_bytes=lengths,
        answer_bytes=lengths,
        longest_answer=np.full(40, 6, dtype=np.int32),
        loops=np.zeros(40, dtype=np.bool_),
    )
    monkeypatch.setattr(head, "PORTION", 8)
    monkeypatch.setattr(states, "CPU_PASS_TOKENS", 24)
    shape = MixtureShape(320, 32, 8, 1, 1, 32, 32, experts=4)
    model = MixtureLM(shape, torch.float32).requires_grad_(False)
    initialise(model, 0)
    for seconds, said in ((0.0, 8), (4000.0, 30)):
        sizes = [f"--seconds={seconds}", "--head-seconds=1", "--answer-tokens=2"]
        options = parse(["--corpus", "a", "--output", "b", "--device", "cpu", *sizes])
        answers = answered(options, Progress(), model, documents, ["dolly-15k"], [3], count=30, greedy=True, seed=0)
        assert len(answers.answers) == len(answers.prompts) == len(answers.of_tools) == said
        source = features(options, Progress(), model, tmp_path, answers)
        assert len(source) == said if seconds else 0 < len(source) < said
        assert f"states of {len(source)} of {said} sequences" in capsys.readouterr().out
    training = TargetTraining(options, Progress(), model, balanced_loss)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    training.polish(documents, ["dolly-15k"], [3], has_time=lambda: False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.slow
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
    files = {"config.json", "tokenizer.json", "model.safetensors"}
    assert files <= {path.name for path in (out / TARGET_NAME).iterdir()}
    assert report["heldout"]["answers"]["overall"]["nats_per_token"] < 5.2  # log(320) is 5.77
    assert report["states"]["sequences"] == 16 and report["head"]["acceptance_length"] >= 1
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in report["shares"]) and len(report["shares"]) == 8
    config = ModelConfig.from_folder(out / TARGET_NAME)
    assert config.form.experts is not None and config.form.experts.count == 8
    drafter = f"eagle3:{out / HEAD_NAME}:target={out / TARGET_NAME}"
    with Cluster(out / TARGET_NAME, draft=(drafter,), verify_args=("--draft-deadline-ms", "5000")) as cluster:
        work = jobs(2, tokens=24, vocabulary=(10, 300))
        plain, drafted = ask(cluster, work), ask(cluster, [replace(job, proposer="eagle3") for job in work])
    assert tokens_of(plain) == tokens_of(drafted)
    assert all(answer.drafted > 0 for answer in drafted)
