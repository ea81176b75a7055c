"""Operands of e4m3 on which it shows how a product's sum was made, and what the product is in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.kernels.check_fp8_products.products import CHUNK, Fp8Operands
from slipstream_kernels.ops.kv_cache.kv_codes import LARGEST

KINDS = ("normal", "any code", "cancelling", "subnormal", "largest", "one large")
"""Rows and weight rows take turns in these kinds, so that every kind meets every other."""

_DISTANCES = (1, 32, CHUNK)
"""Between elements whose products cancel: within an instruction, between two of them, between two chunks."""
_LEAST = 2.0**-9
"""Least number of e4m3; the subnormal ones are its multiples up to 7."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows among others than in the whole, or at other places."""

    name: str
    index: torch.Tensor
    """Numbers [n] of the rows in the whole."""

    operands: Fp8Operands


@dataclass(frozen=True, slots=True)
class Scene:
    """Operands of a layer, and parts of their rows that are computed by themselves."""

    whole: Fp8Operands
    parts: tuple[Part, ...]

    @classmethod
    def random(cls, counts: tuple[int, ...], outputs: int, inputs: int, device: torch.device, *, blocks: bool) -> Scene:
        """As many rows as the last of `counts`, and of each count the first rows and ones in random order."""
        random = torch.Generator(device).manual_seed(inputs)
        rows, chunks = counts[-1], -(-inputs // CHUNK)

        def scales(*shape: int) -> torch.Tensor:
            # Powers of two make the order of the products with a row's and an output's scale no matter.
            drawn = torch.randn(shape, generator=random, device=device)
            return torch.exp2(drawn if blocks else drawn.round())

        whole = Fp8Operands(
            random_rows(rows, inputs, random),
            random_rows(outputs, inputs, random),
            scales(chunks if blocks else 1, rows),
            scales(-(-outputs // CHUNK), chunks) if blocks else scales(outputs, 1),
        )
        return cls(whole, tuple(_parts(whole, counts, random)))


def _parts(whole: Fp8Operands, counts: tuple[int, ...], random: torch.Generator) -> Iterator[Part]:
    for count in counts:
        first = torch.arange(count, device=random.device)
        drawn = torch.randperm(len(whole.x), generator=random, device=random.device)[:count]
        for name, index in ((f"first {count}", first), (f"any {count}", drawn)):
            yield Part(name, index, whole.rows(index))


def random_rows(rows: int, inputs: int, random: torch.Generator) -> torch.Tensor:
    """float8_e4m3fn [rows, inputs]; row r is of kind r % len(KINDS)."""
    values = torch.empty(rows, inputs, device=random.device)
    for number, kind in enumerate(KINDS):
        part = values[number :: len(KINDS)]
        if part.numel():
            part.copy_(_rows_of(kind, len(part), inputs, random))
    return values.to(torch.float8_e4m3fn)


def _rows_of(kind: str, rows: int, inputs: int, random: torch.Generator) -> torch.Tensor:
    device, shape = random.device, (rows, inputs)

    def whole(low: int, high: int, size: tuple[int, ...] = shape) -> torch.Tensor:
        return torch.randint(low, high, size, generator=random, device=device)

    signs = 1.0 - 2.0 * whole(0, 2)
    small = whole(0, 8) * _LEAST * signs
    if kind == "normal":
        drawn = torch.randn(shape, generator=random, device=device)
        return drawn * (LARGEST / drawn.abs().amax(1, keepdim=True))
    if kind == "any code":
        codes = (whole(0, 0x7F) | whole(0, 2) << 7).to(torch.uint8)
        return codes.view(torch.float8_e4m3fn).float()
    if kind == "cancelling":
        return _cancelling(rows, inputs, small, random)
    if kind == "subnormal":
        return small
    if kind == "largest":
        return LARGEST * signs
    return small.scatter_(1, whole(0, inputs, (rows, 1)), LARGEST)


def _cancelling(rows: int, inputs: int, small: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Rows of two sorts in turn, of which one's products with the other cancel.

    Numbers of the first stay the same along two chunks. The second holds large numbers, each with its negative at a
    distance, and among them pairs of small ones, which are what is left of the sum.
    """
    device = random.device
    columns = torch.arange(inputs, device=device)
    large = torch.randn(rows, inputs, generator=random, device=device) * (LARGEST / 6)
    use_small = torch.rand(rows, inputs, generator=random, device=device) < 1 / 4
    made = torch.empty_like(large)
    for number in range(rows):
        turn = number // 2 % len(_DISTANCES)
        if number % 2:
            made[number] = large[number, columns // (2 * CHUNK)]
            continue
        distance = _DISTANCES[turn]
        partner = columns & ~distance
        sign = torch.where(columns == partner, 1.0, -1.0)
        made[number] = torch.where(use_small[number, partner], small[number], sign * large[number, partner])
    return made.clamp(-LARGEST, LARGEST)


def exact(given: Fp8Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 [rows, N]: the products, and the sums of their terms' magnitudes."""
    x, weight = given.x.float().double(), given.weight.float().double()
    x_scales, weight_scales = given.x_scales.double(), given.weight_scales.double()
    if len(x_scales) > 1:
        x *= x_scales.t().repeat_interleave(CHUNK, 1)
        weight *= weight_scales.repeat_interleave(CHUNK, 0)[: len(weight)].repeat_interleave(CHUNK, 1)
    else:
        x *= x_scales.t()
        weight *= weight_scales
    return x @ weight.T, x.abs() @ weight.abs().T
