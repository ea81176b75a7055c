"""Times of an 8B model's linear layers with products of e4m3, beside the project's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.check_fp8_products.products import (
    CHUNK,
    SCHEMES,
    Fp8Operands,
    SchemeTile,
    fp8_products,
    quantise,
)
from benchmarks.kernels.check_packed import FORMS, random_weight, run, timed
from benchmarks.kernels.linear_candidates import Layer
from slipstream_kernels.ops.gpu.packed.packed_weight import pack

ROWS = (128, 512, 2048)
TILES = (
    SchemeTile(64, 64, 4, tokens_first=False, stages=4),
    SchemeTile(128, 64, 4, tokens_first=False, stages=4),
    SchemeTile(128, 128, 8, tokens_first=False, stages=4),
    SchemeTile(256, 128, 8, tokens_first=False, stages=4),
    SchemeTile(128, 256, 8, tokens_first=True, stages=4),
)
_L2_BYTES = 60 << 20
_SCHEMES = tuple(scheme for scheme in SCHEMES if scheme.imprecise != 0)
BFLOAT16, WEIGHT_ONLY = "bfloat16", "FP8 weights"

Call = Callable[[], object]


def scaled_mm(given: Fp8Operands, dtype: torch.dtype, *, fast: bool, tensor: bool = False) -> torch.Tensor:
    """The library's product [rows, N]. Where `tensor`, without any scales.

    Raises RuntimeError where this version of it has no such product.
    """
    x_scales, weight_scales = given.x_scales.t(), given.weight_scales.t()
    if tensor:
        x_scales = weight_scales = torch.ones((), device=given.x.device)
    return torch._scaled_mm(  # noqa: SLF001  # has no other name in every version
        given.x, given.weight.t(), x_scales, weight_scales, out_dtype=dtype, use_fast_accum=fast
    )


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """Copies of a layer's weight in every form, more of each than the L2 cache holds, and rows."""

    layer: Layer
    x: torch.Tensor
    out: torch.Tensor
    residual: torch.Tensor | None
    dense: Sequence[Any]
    packed: Sequence[Any]
    by_rows: Sequence[Fp8Operands]
    by_blocks: Sequence[Fp8Operands]

    @classmethod
    def random(cls, layer: Layer, rows: int, device: torch.device, copies: int | None = None) -> TimedLayer:
        outputs, inputs = layer.weight_rows, layer.inputs
        copies = copies or max(2, 1 + 2 * _L2_BYTES // (outputs * inputs))

        def bfloat16(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=device).bfloat16()

        def coded(*shape: int) -> torch.Tensor:
            return bfloat16(*shape).to(torch.float8_e4m3fn)

        room = torch.empty(outputs * inputs, dtype=torch.bfloat16, device=device)
        forms = [random_weight(FORMS[0], outputs, inputs, device, hostile=False) for _ in range(copies)]
        codes, chunks = coded(rows, inputs), -(-inputs // CHUNK)
        weights = [coded(outputs, inputs) for _ in range(copies)]
        ones = partial(torch.ones, device=device)
        return cls(
            layer,
            bfloat16(rows, inputs),
            torch.empty(rows, layer.outputs, dtype=torch.bfloat16, device=device),
            bfloat16(rows, layer.outputs) if layer.residual else None,
            [bfloat16(outputs, inputs) for _ in range(max(2, copies // 2))],
            [replace(pack(form).settled(), room=room) for form in forms],
            [Fp8Operands(codes, weight, ones(1, rows), ones(outputs, 1)) for weight in weights],
            [Fp8Operands(codes, weight, ones(chunks, rows), ones(-(-outputs // CHUNK), chunks)) for weight in weights],
        )

    def ways(self, rows: int) -> Iterator[tuple[str, list[Call]]]:
        """Names of what is timed, each with calls over all copies. The library's products are not gated."""
        layer, x, out = self.layer, self.x[:rows], self.out[:rows]
        residual = None if self.residual is None else self.residual[:rows]
        more = {} if residual is None else {"residual": residual}
        for name, weights in ((BFLOAT16, self.dense), (WEIGHT_ONLY, self.packed)):
            yield name, [partial(run, weight, layer, x, out, more, None) for weight in weights]
        first = torch.arange(rows, device=x.device)
        by_rows, by_blocks = (
            [replace(copies[0].rows(first), weight=each.weight) for each in copies]
            for copies in (self.by_rows, self.by_blocks)
        )
        for scheme in _SCHEMES:
            for tile in TILES:
                given = by_blocks if scheme.blocks else by_rows
                own = partial(fp8_products, out=out, scheme=scheme, tile=tile, gated=layer.gated, residual=residual)
                yield f"{scheme.name}: {tile.name}", [partial(own, each) for each in given]
        for name, given, fast in (
            ("_scaled_mm rows", by_rows, False),
            ("_scaled_mm rows fast", by_rows, True),
            ("_scaled_mm blocks", by_blocks, False),
        ):
            yield name, [partial(scaled_mm, each, torch.bfloat16, fast=fast) for each in given]
        for name, operands in (("quantise rows", by_rows[0]), ("quantise blocks", by_blocks[0])):
            codes, scales = operands.x.view(torch.uint8), operands.x_scales.clone()
            yield name, [partial(quantise, x, torch.empty_like(codes), scales) for _ in range(4)]


def compile_all(layer: TimedLayer, rows: int) -> None:
    """Launch every kernel that is timed once, but for the library's."""
    for name, calls in layer.ways(rows):
        if not name.startswith("_scaled_mm"):
            calls[0]()


def time_layer(layer: TimedLayer, rows: int, measure: Callable[[list[Call]], float] = timed) -> dict[str, Any]:
    """Microseconds of each way; of a scheme those of its fastest tile, which `tiles` names."""
    times: dict[str, float] = {}
    tiles: dict[str, str] = {}
    failed: dict[str, str] = {}
    for name, calls in layer.ways(rows):
        way, _, tile = name.partition(": ")
        try:
            time = measure(calls)
        except Exception as error:  # noqa: BLE001  # what a tile needs the device may not have, nor the library a product
            failed[name] = f"{type(error).__name__}: {str(error)[-200:]}"
            continue
        if time < times.get(way, float("inf")):
            times[way] = time
            if tile:
                tiles[way] = tile
    shape = {"layer": layer.layer.name, "count": layer.layer.count, "rows": rows}
    return shape | {"microseconds": times, "tiles": tiles, "failed": failed}


def passes(times: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Milliseconds of a pass's linear layers by rows and way, the quantiser's part included; None if one failed."""
    result = []
    for rows in dict.fromkeys(entry["rows"] for entry in times):
        here = [entry for entry in times if entry["rows"] == rows]
        names = dict.fromkeys(name for entry in here for name in entry["microseconds"] if "quantise" not in name)
        result.append({"rows": rows} | {name: _milliseconds(here, name) for name in names})
    return result


def _milliseconds(entries: Sequence[dict[str, Any]], name: str) -> float | None:
    """Of all layers' calls by the way `name`."""
    total = 0.0
    for entry in entries:
        found = entry["microseconds"]
        needed = [name]
        if name not in (BFLOAT16, WEIGHT_ONLY):
            needed.append("quantise blocks" if "blocks" in name else "quantise rows")
        if any(each not in found for each in needed):
            return None
        total += entry["count"] * sum(found[each] for each in needed)
    return round(total / 1e3, 3)
