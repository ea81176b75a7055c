"""Kernels are compiled before they run, for a GPU that nobody has: a launch that ran one would fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = """
import sys, threading
import torch, triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import ty_to_cpp
from triton.runtime import driver
from slipstream_kernels.jit.compile_ahead import compiling_ahead, is_compiling_ahead

class Hopper:
    def get_current_device(self): return 0
    def get_current_stream(self, device=0): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_active_torch_device(self): return torch.device("cpu")
    def map_python_to_cpp_type(self, ty): return ty_to_cpp(ty)
    def launcher_cls(self, src, metadata): launchers.append((src.fn.__name__, threading.current_thread().name[:7]))

launchers = []
driver.set_active(Hopper())

@triton.jit
def add(x, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(x + at, tl.load(x + at) + 1)

@triton.jit
def wrong(x, SIZE: tl.constexpr):
    tl.static_assert(SIZE == 16)
    tl.store(x, SIZE)

x = torch.zeros(64, dtype=torch.int32)
others = []

def launch(kernel, size):
    try:
        kernel[(1,)](x, size)
    except Exception as error:
        others.append(type(error).__name__)

plain = triton.runtime.jit.JITFunction.run
ahead = []
assert not is_compiling_ahead()
with compiling_ahead(2):
    assert is_compiling_ahead()
    asking = threading.Thread(target=lambda: ahead.append(is_compiling_ahead()))
    asking.start()
    asking.join()
    for size in (16, 32, 64, 16):
        add[(1,)](x, size)
    other = threading.Thread(target=launch, args=(add, 8))
    other.start()
    other.join()
assert ahead == [False], "another thread does not"
assert not is_compiling_ahead()
assert len(others) == 1, "another thread's launch is as ever: it fails here"
assert triton.runtime.jit.JITFunction.run is plain
kernels = add.device_caches[0][0]
compiled = [kernel for kernel in kernels.values() if "cubin" in kernel.asm]
print("compiled", len(compiled), "sum", int(x.sum()))
print("launchers", launchers.count(("add", "compile")))
try:
    with compiling_ahead(2):
        wrong[(1,)](x, 16)
        wrong[(1,)](x, 32)
except Exception as error:
    print("told", type(error).__name__)
assert triton.runtime.jit.JITFunction.run is plain
launch(add, 16)
assert len(others) == 2
"""


def test_launches_within_compile_and_run_nothing(tmp_path: Path) -> None:
    script = tmp_path / "kernels_of_nobody.py"  # Triton reads sources
    script.write_text(SCRIPT, "utf-8")
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["compiled 4 sum 0", "launchers 3", "told CompileTimeAssertionFailure"]
    assert len(list((tmp_path / "cache").rglob("add.cubin"))) == 4
