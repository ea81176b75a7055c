"""A model that keeps a row's bits passes the probe; one that does not, in any of the ways probed, fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.verify_loop import Target
from verify_service.core.engine_config import EngineConfig
from verify_service.server.row_invariance import probe_pass_invariance

CONFIG = EngineConfig(num_pages=16, page_size=8, max_running=4, max_nodes=32, step_nodes=40, prefill_chunk=80)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, page_size=1, num_pages=80, prefill_chunk=3),
        replace(CONFIG, num_pages=1, max_running=1, max_nodes=1, step_nodes=0, prefill_chunk=1),
    ],
    ids=["some", "small pages", "least"],
)
def test_twins_pass(twins: Target, config: EngineConfig) -> None:
    assert probe_pass_invariance(twins(config))


def test_another_probe_may_follow(twins: Target) -> None:
    model = twins(CONFIG)
    assert probe_pass_invariance(model, seed=1)
    assert probe_pass_invariance(model, seed=2)


Op = Callable[..., Any]


def disturbed(folder: Path, name: str, disturb: Callable[[Op], Op]) -> Any:
    from slipstream_kernels.models.gpu.forward.ops_namespace import twins as twin_ops
    from support.device_reference import twin_target

    def ops() -> Any:
        exact = twin_ops()
        return replace(exact, **{name: disturb(getattr(exact, name))})

    return twin_target(folder, ops)(CONFIG)


def by_rows(low: int, high: int) -> Callable[[Op], Op]:
    """Changes an op's output in passes of `low` to `high` rows, by less than a part in a hundred."""

    def disturb(op: Op) -> Op:
        def other(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, **extra: Any) -> None:
            op(x, weight, out, **extra)
            if low <= len(x) <= high:
                out.mul_(1 + 2**-7)

        return other

    return disturb


@pytest.mark.parametrize(("low", "high"), [(1, 1), (64, 64), (80, 200), (4, 4)], ids=str)
def test_linear_layers_that_follow_the_number_of_rows_fail(tiny_model: Path, low: int, high: int) -> None:
    assert not probe_pass_invariance(disturbed(tiny_model, "linear", by_rows(low, high)))


def test_prefill_that_rounds_differently_fails(tiny_model: Path) -> None:
    def disturb(op: Op) -> Op:
        def other(*args: Any, **extra: Any) -> None:
            op(*args, **extra)
            args[-1].mul_(1 + 2**-7)

        return other

    assert not probe_pass_invariance(disturbed(tiny_model, "prefill_attention", disturb))
