"""The functions of cuBLASLt that a product needs, as cublasLt.h of CUDA 12 and 13 declares them, by ctypes.

The library is the one that torch has loaded; a process without it has no products.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar

SUCCESS = 0
"""cublasStatus_t"""
REAL_32F, REAL_16BF = 0, 14
"""cudaDataType_t"""
COMPUTE_32F = 68
"""cublasComputeType_t: products of the operands' precision, float32 sums."""
TRANSPOSED = 1
"""cublasOperation_t"""
NO_REDUCTION = 0
"""cublasLtReductionScheme_t, also as a mask of those that are allowed."""

_SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")


class DescAttribute(IntEnum):
    """cublasLtMatmulDescAttributes_t"""

    TRANSA = 3


class PreferenceAttribute(IntEnum):
    """cublasLtMatmulPreferenceAttributes_t"""

    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class ConfigAttribute(IntEnum):
    """cublasLtMatmulAlgoConfigAttributes_t"""

    ID = 0
    TILE_ID = 1
    SPLITK_NUM = 2
    REDUCTION_SCHEME = 3
    CTA_SWIZZLING = 4
    CUSTOM_OPTION = 5
    STAGES_ID = 6
    INNER_SHAPE_ID = 7
    CLUSTER_SHAPE_ID = 8


CONFIG_TYPES: dict[ConfigAttribute, type[c_int32 | c_uint32 | c_uint16]] = {
    ConfigAttribute.ID: c_int32,
    ConfigAttribute.TILE_ID: c_uint32,
    ConfigAttribute.SPLITK_NUM: c_int32,
    ConfigAttribute.REDUCTION_SCHEME: c_uint32,
    ConfigAttribute.CTA_SWIZZLING: c_uint32,
    ConfigAttribute.CUSTOM_OPTION: c_uint32,
    ConfigAttribute.STAGES_ID: c_uint32,
    ConfigAttribute.INNER_SHAPE_ID: c_uint16,
    ConfigAttribute.CLUSTER_SHAPE_ID: c_uint16,
}


class MatmulAlgo(ctypes.Structure):
    """cublasLtMatmulAlgo_t"""

    _fields_: ClassVar = [("data", c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_: ClassVar = [
        ("algo", MatmulAlgo),
        ("workspace_size", c_size_t),
        ("state", c_int),
        ("waves_count", c_float),
        ("reserved", c_int * 4),
    ]


_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, POINTER(HeuristicResult), POINTER(c_int)),
    "cublasLtMatmulAlgoConfigGetAttribute": (POINTER(MatmulAlgo), c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "cublasLtMatmulAlgoCheck": (*[c_void_p] * 6, POINTER(MatmulAlgo), POINTER(HeuristicResult)),
    "cublasLtMatmul": (*[c_void_p] * 12, POINTER(MatmulAlgo), c_void_p, c_size_t, c_void_p),
}


class CublasLtError(Exception):
    """A call that the library refused."""


def open_library(path: str, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """The library with its prototypes. Raises OSError where it cannot be loaded, AttributeError for another library."""
    library = ctypes.CDLL(path, mode)
    for name, arguments in _PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    library.cublasLtGetVersion.argtypes, library.cublasLtGetVersion.restype = (), c_size_t
    return library


@cache
def loaded_library() -> ctypes.CDLL | None:
    """The library that torch has loaded into this process; None where there is none."""
    for name in _SONAMES:
        try:
            return open_library(name, os.RTLD_NOLOAD | os.RTLD_NOW)
        except (OSError, AttributeError):
            continue
    return None


def check(status: int, what: str) -> None:
    """Raises CublasLtError for a cublasStatus_t other than success."""
    if status != SUCCESS:
        raise CublasLtError(f"{what} returned status {status}")
