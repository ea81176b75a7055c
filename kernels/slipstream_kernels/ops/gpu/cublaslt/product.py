"""One product by one algorithm of cuBLASLt: out = x weight^T + residual, summed in float32 and rounded once.

The library's matrices are laid out by columns. A row-major matrix [n, m] is a matrix of m rows and n columns to it, so
that it computes out^T = weight x^T: weight [N, K] is its first operand, transposed, and x [rows, K] its second.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from slipstream_kernels.ops.gpu.cublaslt.bindings import (
    COMPUTE_32F,
    CONFIG_TYPES,
    NO_REDUCTION,
    REAL_16BF,
    REAL_32F,
    SUCCESS,
    TRANSPOSED,
    ConfigAttribute,
    CublasLtError,
    DescAttribute,
    HeuristicResult,
    MatmulAlgo,
    PreferenceAttribute,
    check,
    loaded_library,
)

ALIGNMENT = 16
"""Bytes to which operands are aligned at least, and their rows."""

_MOST_ALGORITHMS = 32
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)


@dataclass(frozen=True, slots=True)
class Problem:
    """What a product is of: bfloat16 operands x [rows, inputs] and weight [outputs, inputs], which is contiguous.

    Strides are elements from row to row; `residual_stride` None is for a product without. `float32`: the dtype of out,
    else bfloat16. A residual is bfloat16, and there is none where out is float32.
    """

    outputs: int
    inputs: int
    rows: int
    x_stride: int
    out_stride: int
    residual_stride: int | None = None
    float32: bool = False

    @classmethod
    def packed(cls, outputs: int, inputs: int, rows: int, *, residual: bool, float32: bool) -> Problem:
        """One whose tensors are contiguous."""
        return cls(outputs, inputs, rows, inputs, outputs, outputs if residual else None, float32)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What names an algorithm in every process that has the same version of the library; all of them do not split K."""

    id: int
    tile: int
    stages: int
    inner_shape: int = 0
    cluster_shape: int = 0
    swizzle: int = 0
    custom: int = 0


@dataclass(frozen=True, slots=True)
class CublasLt:
    """The library with a handle of one device."""

    functions: Any
    handle: ctypes.c_void_p | None
    device: torch.device

    @property
    def version(self) -> int:
        return int(self.functions.cublasLtGetVersion())

    def created(self, kind: str, *arguments: Any) -> _Object:
        """A descriptor, destroyed with what is returned."""
        return _Object(self.functions, kind, arguments)


class _Object:
    """A descriptor of the library."""

    def __init__(self, functions: Any, kind: str, arguments: tuple[Any, ...]) -> None:
        self.pointer = ctypes.c_void_p()
        create = getattr(functions, f"cublasLt{kind}Create")
        check(create(ctypes.byref(self.pointer), *arguments), f"cublasLt{kind}Create")
        weakref.finalize(self, getattr(functions, f"cublasLt{kind}Destroy"), self.pointer).atexit = False
        self._set, self._kind = getattr(functions, f"cublasLt{kind}SetAttribute", None), kind

    def set(self, attribute: int, value: Any) -> None:
        """Set an attribute to a ctypes value."""
        assert self._set is not None
        status = self._set(self.pointer, attribute, ctypes.byref(value), ctypes.sizeof(value))
        check(status, f"cublasLt{self._kind}SetAttribute({attribute})")


@cache
def cublaslt(device: torch.device) -> CublasLt | None:
    """The library on a CUDA device; None where it is not loaded or does not start there."""
    functions = loaded_library() if device.type == "cuda" else None
    if functions is None:
        return None
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        started = functions.cublasLtCreate(ctypes.byref(handle)) == SUCCESS
    return CublasLt(functions, handle, device) if started else None


class Descriptors:
    """A problem in the library's terms. Raises CublasLtError where it has none for it."""

    def __init__(self, library: CublasLt, problem: Problem) -> None:
        self.library = library
        self.problem = p = problem
        out = REAL_32F if p.float32 else REAL_16BF
        self._product = library.created("MatmulDesc", COMPUTE_32F, REAL_32F)
        self._product.set(DescAttribute.TRANSA, ctypes.c_int32(TRANSPOSED))
        self._weight = library.created("MatrixLayout", REAL_16BF, p.inputs, p.outputs, p.inputs)
        self._x = library.created("MatrixLayout", REAL_16BF, p.inputs, p.rows, p.x_stride)
        self._out = library.created("MatrixLayout", out, p.outputs, p.rows, p.out_stride)
        self._addend = self._out
        if p.residual_stride is not None:
            self._addend = library.created("MatrixLayout", out, p.outputs, p.rows, p.residual_stride)

    @property
    def _all(self) -> tuple[ctypes.c_void_p, ...]:
        every = self._product, self._weight, self._x, self._addend, self._out
        return tuple(each.pointer for each in every)

    def algorithms(self) -> Iterator[tuple[Algorithm, MatmulAlgo]]:
        """Those that the library proposes, likely fastest first, of which none splits K or needs a workspace."""
        preference = self.library.created("MatmulPreference")
        preference.set(PreferenceAttribute.MAX_WORKSPACE_BYTES, ctypes.c_uint64(0))
        preference.set(PreferenceAttribute.REDUCTION_SCHEME_MASK, ctypes.c_uint32(NO_REDUCTION))
        for operand in "ABCD":
            preference.set(PreferenceAttribute[f"MIN_ALIGNMENT_{operand}_BYTES"], ctypes.c_uint32(ALIGNMENT))
        results, found = (HeuristicResult * _MOST_ALGORITHMS)(), ctypes.c_int()
        status = self.library.functions.cublasLtMatmulAlgoGetHeuristic(
            self.library.handle, *self._all, preference.pointer, _MOST_ALGORITHMS, results, ctypes.byref(found)
        )
        check(status, "cublasLtMatmulAlgoGetHeuristic")
        seen: set[Algorithm] = set()
        for result in results[: found.value]:
            if result.state != SUCCESS or result.workspace_size or not self._is_whole(result.algo):
                continue
            algorithm = self._named(result.algo)
            if algorithm not in seen:
                seen.add(algorithm)
                yield algorithm, result.algo

    def runs(self, algo: MatmulAlgo) -> bool:
        """Whether the algorithm can do this problem, without a workspace."""
        result = HeuristicResult()
        status = self.library.functions.cublasLtMatmulAlgoCheck(
            self.library.handle, *self._all, ctypes.byref(algo), ctypes.byref(result)
        )
        return bool(status == SUCCESS and result.workspace_size == 0)

    def launch(self, algo: MatmulAlgo, weight: int, x: int, residual: int | None, out: int) -> None:
        """Queue the product of tensors at these addresses on torch's current stream. Raises CublasLtError."""
        product, weights, tokens, addend, outputs = self._all
        status = self.library.functions.cublasLtMatmul(
            self.library.handle,
            product,
            ctypes.addressof(_ONE),
            weight,
            weights,
            x,
            tokens,
            ctypes.addressof(_ZERO if residual is None else _ONE),
            out if residual is None else residual,
            addend,
            out,
            outputs,
            ctypes.byref(algo),
            None,
            0,
            _stream(self.library.device),
        )
        check(status, "cublasLtMatmul")

    def _config(self, algo: MatmulAlgo, attribute: ConfigAttribute) -> int:
        value, written = CONFIG_TYPES[attribute](), ctypes.c_size_t()
        status = self.library.functions.cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(algo), attribute, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written)
        )
        check(status, f"cublasLtMatmulAlgoConfigGetAttribute({attribute.name})")
        return value.value

    def _is_whole(self, algo: MatmulAlgo) -> bool:
        """Whether the sum over K is one chain: neither split nor shared among programs, which has negative numbers."""
        splits = self._config(algo, ConfigAttribute.SPLITK_NUM)
        return splits in (0, 1) and self._config(algo, ConfigAttribute.REDUCTION_SCHEME) == NO_REDUCTION

    def _named(self, algo: MatmulAlgo) -> Algorithm:
        read: Callable[[ConfigAttribute], int] = lambda attribute: self._config(algo, attribute)  # noqa: E731
        return Algorithm(
            id=read(ConfigAttribute.ID),
            tile=read(ConfigAttribute.TILE_ID),
            stages=read(ConfigAttribute.STAGES_ID),
            inner_shape=read(ConfigAttribute.INNER_SHAPE_ID),
            cluster_shape=read(ConfigAttribute.CLUSTER_SHAPE_ID),
            swizzle=read(ConfigAttribute.CTA_SWIZZLING),
            custom=read(ConfigAttribute.CUSTOM_OPTION),
        )


@dataclass(frozen=True, slots=True)
class Product:
    """A problem with the algorithm that does it."""

    descriptors: Descriptors
    algorithm: Algorithm
    algo: MatmulAlgo = field(compare=False)

    @property
    def problem(self) -> Problem:
        return self.descriptors.problem

    def of(self, problem: Problem) -> Product | None:
        """The same algorithm for another problem; None where it does not do that. Raises CublasLtError."""
        descriptors = Descriptors(self.descriptors.library, problem)
        return Product(descriptors, self.algorithm, self.algo) if descriptors.runs(self.algo) else None

    def run(
        self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None = None
    ) -> None:
        """Queue the product of tensors as the problem says; `residual` may be `out`.

        Allocates nothing, and can be captured. Raises CublasLtError.
        """
        place = None if residual is None else residual.data_ptr()
        self.descriptors.launch(self.algo, weight.data_ptr(), x.data_ptr(), place, out.data_ptr())


def products(library: CublasLt, problem: Problem) -> list[Product]:
    """The problem by each algorithm that the library proposes for it, likely fastest first; none where it has none."""
    try:
        descriptors = Descriptors(library, problem)
        return [Product(descriptors, name, algo) for name, algo in descriptors.algorithms()]
    except CublasLtError:
        return []


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0
