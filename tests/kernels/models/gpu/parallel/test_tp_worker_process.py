from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import read_adapter
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.parallel import tp_worker_process
from slipstream_kernels.models.gpu.parallel.tp_driver import TpDriverModel
from slipstream_kernels.models.gpu.parallel.tp_worker_process import (
    TpWorkerProcesses,
    TpWorkerTask,
    load_shared,
    start_ranks,
)
from slipstream_kernels.models.gpu.ranks.rank_group import RankGroup
from slipstream_kernels.models.kv_form import KVForm
from slipstream_kernels.models.rank_error import RankError
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from slipstream_kernels.token_tree import TokenTree
from support.gpu_passes import EMPTY_TREE, Span, pass_of
from support.lora_adapters import write_adapter
from support.models import make_tiny_model
from support.thread_ranks import ThreadGroup, on_ranks

LIMITS = GpuLimits(max_running=3, max_nodes=16, step_nodes=40, prefill_chunk=64, num_pages=40, max_context=256)
TOKENS = 24
PAGES = ([3, 1, 4, 15, 9, 2, 6, 5], [35, 8, 39, 7, 32, 38, 13, 26])
SAMPLED = pack_line(temperature=0.9, top_k=40, top_p=0.95, seed=11, repetition=1.2, has_bias=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), heads=4, kv_heads=2)


class Losses:
    """What `on_loss` was told."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.told = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self.told.set()


@contextmanager
def shared(folder: Path, limits: GpuLimits = LIMITS) -> Iterator[tuple[TpDriverModel, TpWorkerProcesses, Losses]]:
    losses = Losses()
    model, followers = load_shared(folder, limits, device="cpu", mode="exact", size=2, progress=False, on_loss=losses)
    try:
        yield model, followers, losses
    finally:
        followers.kill()
        model.leave()


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, count).tolist()


def begin(model: GpuModel, *, sampled: bool) -> None:
    for line, pages in enumerate(PAGES):
        model.set_pages(line, 0, pages)
        tokens = random_tokens(30, line)
        if sampled:
            model.set_line(line, SAMPLED, prompt_ids=tokens, output_ids=[], bias=[(5, 1.5), (9, -2.0)])
        else:
            model.set_line(line, pack_line())


def generate(model: GpuModel, count: int, *, trees: list[list[int]] | None = None, sampled: bool) -> list[list[int]]:
    """`count` tokens of two requests, decoded plainly, or with trees that hide what `trees` say is right."""
    begin(model, sampled=sampled)
    outputs: list[list[int]] = []
    first = model.launch(pass_of(LIMITS, [Span(line, random_tokens(30, line), 0, PAGES[line]) for line in (0, 1)]))
    outputs = [[int(row[66])] for row in first.results()]
    while min(map(len, outputs)) < count:
        spans = []
        for line, output in enumerate(outputs):
            tree = EMPTY_TREE
            if trees is not None:
                right = trees[line][len(output) : len(output) + 4]
                # A chain of what is right, and beside each of its nodes one that is not.
                ids = [token for good in right for token in ((good + 1) % 512, good)]
                tree = TokenTree(tuple(ids), tuple(-1 if i < 2 else i // 2 * 2 - 1 for i in range(len(ids))))
            spans.append(Span(line, output[-1:], 29 + len(output), PAGES[line], tree))
        for row, output in zip(model.launch(pass_of(LIMITS, spans)).results(), outputs, strict=True):
            output.extend(row[66 : 67 + row[0]].tolist())
    return [output[:count] for output in outputs]


@pytest.mark.slow
def test_two_ranks_compute_one_model(folder: Path) -> None:
    """The ranks' parts of a sum are rounded to float32 before they are added: logits are close to one rank's.

    No token of this model is near enough to another for that to show. Plain and drafted decoding give equal tokens.
    """
    alone = GpuModel.load(folder, LIMITS, device="cpu", progress=False)
    prompt = pass_of(LIMITS, [Span(0, random_tokens(30, 0), 0, PAGES[0])], all_logits=True)
    with shared(folder) as (model, followers, losses):
        assert model.kv_bytes_per_token() == alone.kv_bytes_per_token() // 2
        for sampled in (False, True):
            begin(alone, sampled=sampled)
            begin(model, sampled=sampled)
            expected, found = (each.launch(prompt).logits.clone() for each in (alone, model))
            assert (found - expected).norm() < 1e-2 * expected.norm()
            plain = generate(model, TOKENS, sampled=sampled)
            drafted = generate(model, TOKENS, trees=plain, sampled=sampled)
            assert drafted == plain == generate(alone, TOKENS, sampled=sampled)
            assert len({*plain[0], *plain[1]}) > 10
        model.stop_followers()
        followers.stop()
        assert not losses.reasons


def test_a_pass_that_is_too_large_is_refused_by_all_ranks(folder: Path) -> None:
    with shared(folder) as (model, _, losses):
        model.set_pages(0, 0, list(range(16)))
        too_large = pass_of(LIMITS, [Span(0, random_tokens(250, 0), 0, range(16))])
        with pytest.raises(ValueError, match="larger than"):
            model.launch(too_large)
        assert len(generate(model, 3, sampled=False)[0]) == 3
        assert not losses.reasons


def test_adapters_reach_other_processes(folder: Path, tmp_path: Path) -> None:
    """What processes compute with one is, bit for bit, what threads do that have loaded it themselves."""
    adapter = read_adapter(write_adapter(tmp_path / "adapter", folder), ModelConfig.from_folder(folder))
    limits = replace(LIMITS, max_adapters=1)
    spans = [Span(line, random_tokens(9, line), 0, PAGES[line]) for line in (0, 1)]

    def logits(model: GpuModel) -> torch.Tensor:
        for span, slot in zip(spans, (0, -1), strict=True):
            model.set_line(span.line, pack_line(), adapter=slot)
            model.set_pages(span.line, 0, span.pages)
        return model.launch(pass_of(limits, spans, all_logits=True)).logits.clone()

    def alone(group: ThreadGroup) -> torch.Tensor:
        model = GpuModel.load(folder, limits, device="cpu", group=group, progress=False)
        model.write_adapter(0, adapter)
        return logits(model)

    expected = on_ranks(2, alone)[0]
    with shared(folder, limits) as (model, followers, losses):
        without = logits(model)
        for _ in range(2):
            model.write_adapter(0, adapter)
            assert torch.equal(logits(model), expected)
            model.free_adapter(0)
        assert not torch.equal(without[:9], expected[:9]) and torch.equal(without[9:], expected[9:])
        assert not losses.reasons
        (pid,) = followers.pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RankError, match="rank 0 of 2"):
            model.write_adapter(0, adapter)


def test_a_follower_that_dies_is_told_and_fails_the_next_pass(folder: Path) -> None:
    with shared(folder) as (model, followers, losses):
        generate(model, 2, sampled=False)
        (pid,) = followers.pids
        os.kill(pid, signal.SIGKILL)
        assert losses.told.wait(120)
        assert losses.reasons == ["rank 1 of the model has ended with status -9"]
        with pytest.raises(RankError, match="rank 0 of 2"):
            generate(model, 100, sampled=False)


def test_a_follower_ends_with_rank_0_alone(folder: Path) -> None:
    """Signals that end a whole group of processes do not end it, but the end of its standard input does."""
    with shared(folder) as (model, followers, losses):
        (pid,) = followers.pids
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        generate(model, 2, sampled=False)
        assert not losses.reasons
        followers.close_leashes()
        assert losses.told.wait(120)
        assert losses.reasons == ["rank 1 of the model has ended with status 0"]


def test_a_follower_that_cannot_load_ends_the_start(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is wrong on its side alone is in its log; rank 0 does not wait for it."""
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").write_bytes(b"")
    task = TpWorkerTask(str(broken), "cpu", "exact", LIMITS)

    def lead(device: torch.device, group: RankGroup) -> TpDriverModel:
        return TpDriverModel.load(folder, LIMITS, device=str(device), group=group, progress=False)

    with pytest.raises(RankError, match="rank 0 of 2"):
        start_ranks(task, 2, lead, on_loss=Losses())
    log = capfd.readouterr().err
    assert re.search(r"ERROR rank 1: .*model\.safetensors", log)
    assert "Traceback" not in log


def test_a_model_that_does_not_divide_starts_no_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tp_worker_process, "_start", lambda *given: pytest.fail("a rank was started"))
    with pytest.raises(CheckpointError, match="num_key_value_heads is 2, which does not divide among 3 ranks"):
        load_shared(folder, LIMITS, device="cpu", mode="exact", size=3, on_loss=Losses())


def test_a_follower_that_hangs_is_told(folder: Path) -> None:
    """A pass that waits for it is under way from its launch on, also where launching is all there is to it."""
    with shared(folder) as (model, followers, losses):
        generate(model, 2, sampled=False)
        followers.watch_progress(model.pending_seconds, 1.0)
        (pid,) = followers.pids
        with ThreadPoolExecutor(1) as pool:
            os.kill(pid, signal.SIGSTOP)
            waiting = pool.submit(generate, model, 2, sampled=False)
            try:
                assert losses.told.wait(120)
                assert losses.reasons == ["a pass has not ended after 1 seconds: a rank of the model hangs"]
                assert not waiting.done()
                assert model.pending_seconds() > 1.0
            finally:
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(RankError, match="rank 0 of 2"):
                waiting.result(timeout=120)
        assert model.pending_seconds() == 0.0


def test_tasks_travel_as_json() -> None:
    task = TpWorkerTask("/models/x", "cuda:2", "fast", LIMITS, options="{}")
    assert TpWorkerTask.from_json(task.to_json()) == task
    fp8 = replace(task, limits=replace(LIMITS, kv=KVForm(fp8=True, scales=((0.5, 0.1), (2.0, 3.0)))))
    assert TpWorkerTask.from_json(fp8.to_json()) == fp8
    expecting = replace(task, limits=replace(LIMITS, boundaries=2, expected_boundaries=(1, 3)))
    assert TpWorkerTask.from_json(expecting.to_json()) == expecting
    assert [str(task.device_of(rank)) for rank in (0, 1)] == ["cuda:2", "cuda:3"]
    assert str(TpWorkerTask("x", "cuda", "fast", LIMITS).device_of(1)) == "cuda:1"
    assert str(TpWorkerTask("x", "cpu", "exact", LIMITS).device_of(1)) == "cpu"
