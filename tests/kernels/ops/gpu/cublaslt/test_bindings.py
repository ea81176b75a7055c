from __future__ import annotations

import ctypes

import pytest
import torch

from slipstream_kernels.ops.gpu.cublaslt import bindings
from slipstream_kernels.ops.gpu.cublaslt.bindings import CONFIG_TYPES, ConfigAttribute, HeuristicResult, MatmulAlgo


def test_structures_have_the_headers_sizes() -> None:
    assert ctypes.sizeof(MatmulAlgo) == 64
    offsets = [getattr(HeuristicResult, name).offset for name, _ in HeuristicResult._fields_]
    assert offsets == [0, 64, 72, 76, 80]
    assert ctypes.sizeof(HeuristicResult) == 96


def test_every_attribute_of_an_algorithm_has_a_type() -> None:
    assert set(CONFIG_TYPES) == set(ConfigAttribute)


def test_a_refusal_is_an_error_that_names_the_call() -> None:
    bindings.check(bindings.SUCCESS, "cublasLtMatmul")
    with pytest.raises(bindings.CublasLtError, match="cublasLtMatmul returned status 7"):
        bindings.check(7, "cublasLtMatmul")


def test_another_library_is_not_taken_for_it() -> None:
    with pytest.raises(AttributeError, match="cublasLtCreate"):
        bindings.open_library("libc.so.6")
    with pytest.raises(OSError, match="libcublasLt-of-nobody"):
        bindings.open_library("libcublasLt-of-nobody.so")


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch of CUDA brings the library")
def test_without_cuda_there_is_no_library() -> None:
    assert bindings.loaded_library() is None


@pytest.mark.gpu
def test_torchs_library_is_found() -> None:
    library = bindings.loaded_library()
    assert library is not None
    assert library.cublasLtGetVersion() // 10000 >= 12
