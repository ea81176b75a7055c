"""The functions of cuBLASLt that are used, on the host: descriptors are kept, products computed by a tile's kernel."""

from __future__ import annotations

import ctypes
from dataclasses import astuple
from typing import Any

import torch

from slipstream_kernels.ops.gpu.cublaslt.bindings import ConfigAttribute, DescAttribute, PreferenceAttribute
from slipstream_kernels.ops.gpu.cublaslt.product import Algorithm, CublasLt
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.tiled_linear import tiled_linear

WHOLE = Algorithm(id=66, tile=600, stages=35, cluster_shape=3)
"""Whose sums are a tile's."""
HALVES = Algorithm(id=66, tile=601, stages=35)
"""Which adds the sums of two halves of K, but says that it does not."""
SPLIT = Algorithm(id=66, tile=602, stages=35)
"""Which says so."""
ROOMY = Algorithm(id=66, tile=603, stages=35)
"""Which needs a workspace."""

_FIELDS = (
    ConfigAttribute.ID,
    ConfigAttribute.TILE_ID,
    ConfigAttribute.STAGES_ID,
    ConfigAttribute.INNER_SHAPE_ID,
    ConfigAttribute.CLUSTER_SHAPE_ID,
    ConfigAttribute.CTA_SWIZZLING,
    ConfigAttribute.CUSTOM_OPTION,
)
_TYPES = {14: torch.bfloat16, 0: torch.float32}
_INVALID, _UNSUPPORTED = 7, 15


class EmulatedFunctions:
    """Proposes `algorithms` for products of at least `least_rows`, and checks what it is given."""

    def __init__(self, algorithms: tuple[Algorithm, ...], tile: Tile, least_rows: int = 1) -> None:
        self._algorithms = algorithms
        self._tile = tile
        self._least_rows = least_rows
        self._objects: dict[int | None, dict[Any, Any]] = {}
        self._made = 0
        self.products = 0

    @property
    def objects(self) -> int:
        """Descriptors that are not destroyed."""
        return len(self._objects)

    def cublasLtGetVersion(self) -> int:  # the library's names
        return 131000

    def cublasLtMatmulDescCreate(self, pointer: Any, compute: int, scale: int) -> int:
        return self._create(pointer, {"compute": compute, "scale": scale})

    def cublasLtMatrixLayoutCreate(self, pointer: Any, kind: int, rows: int, columns: int, ld: int) -> int:
        return _INVALID if ld < rows else self._create(pointer, {"dtype": kind, "size": (rows, columns), "ld": ld})

    def cublasLtMatmulPreferenceCreate(self, pointer: Any) -> int:
        return self._create(pointer, {})

    def cublasLtMatmulDescSetAttribute(self, pointer: Any, attribute: int, value: Any, size: int) -> int:
        assert size == 4
        return self._set(pointer, attribute, value)

    def cublasLtMatmulPreferenceSetAttribute(self, pointer: Any, attribute: int, value: Any, size: int) -> int:
        assert size == (8 if attribute == PreferenceAttribute.MAX_WORKSPACE_BYTES else 4)
        return self._set(pointer, attribute, value)

    def cublasLtMatmulDescDestroy(self, pointer: Any) -> int:
        del self._objects[pointer.value]
        return 0

    cublasLtMatrixLayoutDestroy = cublasLtMatmulPreferenceDestroy = cublasLtMatmulDescDestroy  # noqa: N815

    def cublasLtMatmulAlgoGetHeuristic(self, handle: Any, *arguments: Any) -> int:
        *descriptors, preference, most, results, found = arguments
        wanted = self._objects[preference.value]
        assert wanted[PreferenceAttribute.MAX_WORKSPACE_BYTES] == wanted[PreferenceAttribute.REDUCTION_SCHEME_MASK] == 0
        assert {wanted[PreferenceAttribute[f"MIN_ALIGNMENT_{name}_BYTES"]] for name in "ABCD"} == {16}
        if not self._runs(descriptors):
            return _UNSUPPORTED
        proposed = (*self._algorithms, *self._algorithms)[:most]  # some are proposed twice
        for result, algorithm in zip(results, proposed, strict=False):
            result.algo.data[0] = self._algorithms.index(algorithm)
            result.workspace_size = 1024 if algorithm == ROOMY else 0
        found._obj.value = len(proposed)
        return 0

    def cublasLtMatmulAlgoConfigGetAttribute(
        self, algo: Any, attribute: int, value: Any, size: int, written: Any
    ) -> int:
        assert size == (2 if attribute in (ConfigAttribute.INNER_SHAPE_ID, ConfigAttribute.CLUSTER_SHAPE_ID) else 4)
        algorithm = self._algorithms[algo._obj.data[0]]
        named = dict(zip(_FIELDS, astuple(algorithm), strict=True))
        named |= {ConfigAttribute.SPLITK_NUM: 2 if algorithm == SPLIT else 1, ConfigAttribute.REDUCTION_SCHEME: 0}
        value._obj.value, written._obj.value = named[ConfigAttribute(attribute)], size
        return 0

    def cublasLtMatmulAlgoCheck(self, handle: Any, *arguments: Any) -> int:
        *descriptors, _, _ = arguments
        return 0 if self._runs(descriptors) else _UNSUPPORTED

    def cublasLtMatmul(
        self,
        handle: Any,
        product: Any,
        alpha: int,
        a: int,
        a_layout: Any,
        b: int,
        b_layout: Any,
        beta: int,
        c: int,
        c_layout: Any,
        d: int,
        d_layout: Any,
        algo: Any,
        workspace: Any,
        size: int,
        stream: int,
    ) -> int:
        assert self._objects[product.value] == {"compute": 68, "scale": 0, DescAttribute.TRANSA: 1}
        assert ctypes.c_float.from_address(alpha).value == 1
        assert (workspace, size, stream) == (None, 0, 0)
        weight, x, out = self._tensor(a, a_layout), self._tensor(b, b_layout), self._tensor(d, d_layout)
        added = ctypes.c_float.from_address(beta).value
        residual = self._tensor(c, c_layout) if added else None
        assert added in (0, 1)
        assert c == d or residual is not None
        self.products += 1
        if self._algorithms[algo._obj.data[0]] == HALVES:
            half = x.shape[1] // 2
            parts = torch.empty(2, *out.shape)
            for part, columns in zip(parts, (slice(half), slice(half, None)), strict=True):
                tiled_linear(x[:, columns], weight[:, columns].contiguous(), part, None, None, self._tile)
            out.copy_(parts[0] + parts[1] if residual is None else parts[0] + parts[1] + residual)
        else:
            tiled_linear(x, weight, out, None, residual, self._tile)
        return 0

    def _create(self, pointer: Any, fields: dict[Any, Any]) -> int:
        self._made += 1
        pointer._obj.value = self._made
        self._objects[self._made] = fields
        return 0

    def _set(self, pointer: Any, attribute: int, value: Any) -> int:
        self._objects[pointer.value][attribute] = value._obj.value
        return 0

    def _runs(self, descriptors: list[Any]) -> bool:
        _, weight, x, addend, out = (self._objects[each.value] for each in descriptors)
        (inputs, outputs), (depth, rows) = weight["size"], x["size"]
        assert (depth, addend["size"], out["size"]) == (inputs, (outputs, rows), (outputs, rows))
        assert addend["dtype"] == out["dtype"]
        return bool(rows >= self._least_rows)

    def _tensor(self, address: int, layout: Any) -> torch.Tensor:
        """A matrix by columns as its transpose by rows."""
        fields = self._objects[layout.value]
        (rows, columns), ld, dtype = fields["size"], fields["ld"], _TYPES[fields["dtype"]]
        elements = (columns - 1) * ld + rows
        memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided((columns, rows), (ld, 1))


def emulated_cublaslt(*algorithms: Algorithm, tile: Tile, least_rows: int = 1) -> CublasLt:
    """The library for tensors on the host."""
    return CublasLt(EmulatedFunctions(algorithms, tile, least_rows), None, torch.device("cpu"))
