from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def test_a_case_is_checked_in_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.kernels import check_fp8_cache
    from benchmarks.kernels.check_attention import Case
    from slipstream_kernels.ops.gpu import launch

    if not (launch.INTERPRETED or torch.cuda.is_available()):
        pytest.skip("triton was imported to compile")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    monkeypatch.setattr(check_fp8_cache.written_otherwise, "__defaults__", (5,))
    checked = check_fp8_cache.check_case(Case(64, 1, 1, 16), (0.0, 0.0), device, bounds=(5,))
    assert (checked.attention, checked.tiles, checked.written) == (0, 0, 0)
    assert checked.rows > 64
