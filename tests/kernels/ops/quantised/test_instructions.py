"""Instructions are used only where numba compiles for a processor that has them."""

from __future__ import annotations

import platform

import pytest

from slipstream_kernels.ops.quantised import instructions


@pytest.mark.parametrize(("setting", "expected"), [("", False), ("+avx2,-gfni", False), ("+avx2,+sse3,+gfni", True)])
def test_as_numba_is_set(setting: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions.numba_config, "CPU_FEATURES", setting)
    assert instructions.compiled_for("gfni", "avx2") is expected


def test_those_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions.numba_config, "CPU_FEATURES", None)
    monkeypatch.setattr(instructions, "get_host_cpu_features", lambda: "+avx512f,-avx512bf16")
    assert instructions.compiled_for("avx512f")
    assert not instructions.compiled_for("avx512f", "avx512bf16")


@pytest.mark.skipif(platform.machine().lower() in ("x86_64", "amd64"), reason="the processor may have them")
def test_none_on_other_architectures() -> None:
    assert not instructions.ROUNDS
    assert not instructions.LOOKS_UP
