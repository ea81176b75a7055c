"""Which instructions beyond AVX-512's first the kernels may use on this machine."""

from __future__ import annotations

from numba.core.codegen import get_host_cpu_features

from slipstream_kernels.jit.compiler import numba_config


def compiled_for(*features: str) -> bool:
    """Whether numba compiles for a processor with these, by LLVM's names: this one, unless it is set otherwise."""
    setting = numba_config.CPU_FEATURES
    said = get_host_cpu_features() if setting is None else setting
    return {f"+{feature}" for feature in features} <= set(said.split(","))


ROUNDS = compiled_for("avx512f", "avx512bf16")
"""To round vectors to bfloat16 at once."""

LOOKS_UP = compiled_for("avx512f", "avx512bw", "avx512vbmi", "gfni")
"""To look bytes up in tables of 128."""
