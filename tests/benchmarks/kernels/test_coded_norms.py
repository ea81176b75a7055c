from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.kernels import coded_norms
from benchmarks.kernels.coded_norms import check_norms, time_norms

CPU = torch.device("cpu")


def test_codes_of_other_rows_than_are_kept_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = coded_norms.rms_norm

    def other(x: torch.Tensor, gain: torch.Tensor, out: torch.Tensor | None, eps: float, **coded: torch.Tensor) -> None:
        norm(x, gain, out, eps if out is not None else 10.0, **coded)

    monkeypatch.setattr(coded_norms, "rms_norm", other)
    assert check_norms((2,), (48,), CPU)["differing"] == ["2 rows of 48"]


def test_norms_are_timed_with_codes_and_without() -> None:
    def measured(calls: list[Callable[[], object]]) -> float:
        calls[0]()
        return float(len(calls))

    assert time_norms(2, CPU, measured)["microseconds"] == {"norm": 4.0, "norm, quantise": 4.0, "codes": 4.0}
