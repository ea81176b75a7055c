"""Rank 0 and a follower as threads: what the one is told, adapters among it, the other repeats."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter, read_adapter
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.parallel.tp_driver import TpDriverModel
from slipstream_kernels.models.gpu.parallel.tp_follower import follow
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from support.gpu_passes import Span, pass_of
from support.lora_adapters import write_adapter
from support.models import make_tiny_model
from support.thread_ranks import ThreadGroup, on_ranks

LIMITS = GpuLimits(
    max_running=2, step_nodes=40, prefill_chunk=64, num_pages=8, max_context=64, max_adapters=2, max_adapter_rank=16
)
PROMPTS = [list(range(first, first + 9)) for first in (0, 40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), heads=4, kv_heads=2)


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LoraAdapter]:
    root, config = tmp_path_factory.mktemp("adapters"), ModelConfig.from_folder(folder)
    return [read_adapter(write_adapter(root / str(seed), folder, seed=seed), config) for seed in range(3)]


def logits(model: GpuModel, slots: tuple[int, int]) -> torch.Tensor:
    for line, slot in enumerate(slots):
        model.set_line(line, pack_line(), adapter=slot)
        model.set_pages(line, 0, [line])
    spans = [Span(line, prompt, 0, [line]) for line, prompt in enumerate(PROMPTS)]
    return model.launch(pass_of(LIMITS, spans, all_logits=True)).logits.clone()


def on_two_ranks(folder: Path, lead: Callable[[TpDriverModel], Any]) -> tuple[Any, GpuModel]:
    """What `lead` makes of rank 0's model, and the follower's model."""

    def run(group: ThreadGroup) -> Any:
        if group.rank:
            model = GpuModel.load(folder, LIMITS, device="cpu", group=group, progress=False)
            follow(model, group)
            return model
        driver = TpDriverModel.load(folder, LIMITS, device="cpu", group=group, progress=False)
        try:
            return lead(driver)
        finally:
            driver.stop_followers()

    result, follower = on_ranks(2, run)
    return result, follower


def test_adapters_come_and_go_while_passes_go_on(folder: Path, adapters: list[LoraAdapter]) -> None:
    """Those of one slot change beside passes with that of the other, of which no bit changes."""

    def alone(group: ThreadGroup) -> dict[tuple[int, ...], torch.Tensor]:
        model = GpuModel.load(folder, LIMITS, device="cpu", group=group, progress=False)
        found = {}
        for second in (1, 2):
            model.write_adapter(0, adapters[0])
            model.write_adapter(1, adapters[second])
            found[0, second] = logits(model, (0, 1))
        found[0,] = logits(model, (0, -1))
        return found

    def lead(model: TpDriverModel) -> list[tuple[tuple[int, ...], torch.Tensor]]:
        model.write_adapter(0, adapters[0])
        found: list[tuple[tuple[int, ...], torch.Tensor]] = []
        with ThreadPoolExecutor(1) as pool:
            for second in (1, 2, 1, 2):
                written = pool.submit(model.write_adapter, 1, adapters[second])
                found.append(((0,), logits(model, (0, -1))))
                written.result(60)
                found.append(((0, second), logits(model, (0, 1))))
                model.free_adapter(1)
        return found

    expected = on_ranks(2, alone)[0]
    assert len({tensor.sum().item() for tensor in expected.values()}) == 3
    found, follower = on_two_ranks(folder, lead)
    for key, tensor in found:
        assert torch.equal(tensor, expected[key]), key
    assert follower.limits.max_adapters == 2


def test_one_of_too_large_a_rank_is_refused_before_it_is_sent(folder: Path, tmp_path: Path) -> None:
    large = read_adapter(write_adapter(tmp_path / "large", folder, rank=32), ModelConfig.from_folder(folder))

    def lead(model: TpDriverModel) -> torch.Tensor:
        with pytest.raises(ValueError, match="rank is 32, the limit is 16"):
            model.write_adapter(0, large)
        return logits(model, (-1, -1))

    found, _ = on_two_ranks(folder, lead)
    assert torch.isfinite(found).all()
