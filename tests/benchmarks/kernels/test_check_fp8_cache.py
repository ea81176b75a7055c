from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def test_a_case_is_checked_in_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.kernels import check_attention, check_fp8_cache
    from benchmarks.kernels.check_attention import Case
    from slipstream_kernels.ops.gpu import launch

    if not (launch.INTERPRETED or torch.cuda.is_available()):
        pytest.skip("triton was imported to compile")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    monkeypatch.setattr(check_fp8_cache.written_otherwise, "__defaults__", (5,))
    monkeypatch.setattr(check_attention, "random_parents", lambda _rng, _kind: [-1, 0, -1])
    monkeypatch.setattr(check_fp8_cache, "CHUNK", 3)
    monkeypatch.setattr(check_fp8_cache, "COMPARED", 1)
    checked = check_fp8_cache.check_case(Case(64, 1, 1, 16), (0.0, 0.0), device, bounds=(63, 130))
    assert (checked.written, checked.rows) == (0, 10)
    assert checked.good or not torch.cuda.is_available(), "the interpreter's matrix products keep no order of their own"
    assert checked.error < check_fp8_cache.LIMIT
