"""Norms that quantise what they make, against norms whose rows are quantised behind them: bit for bit, and in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.check_packed import timed
from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows
from slipstream_kernels.ops.gpu.rms_norm import rms_norm

HIDDEN, SMALL_HIDDEN = (2880, 4096, 8192, 16384), (80,)
TIMED_HIDDEN = 4096
NORM = "norm"
EPS = 1e-5

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class NormCase:
    """Rows in front of a norm, and room for what is made of them: by two kernels, and by one."""

    x: torch.Tensor
    gain: torch.Tensor
    rows: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def random(cls, count: int, hidden: int, device: torch.device) -> NormCase:
        x = torch.randn(count, hidden, device=device) * torch.exp2(4 * torch.randn(count, 1, device=device))
        gain, codes = torch.randn(hidden, device=device), torch.empty_like(x, dtype=torch.uint8)
        return cls(
            x.bfloat16(), gain.bfloat16(), torch.empty_like(x).bfloat16(), codes, torch.empty(count, device=device)
        )

    def plain(self) -> None:
        rms_norm(self.x, self.gain, self.rows, EPS)

    def in_two_steps(self) -> None:
        self.plain()
        quantise_rows(self.rows, self.codes, self.scales)

    def fused(self, *, kept: bool = False) -> None:
        rms_norm(self.x, self.gain, self.rows if kept else None, EPS, codes=self.codes, scales=self.scales)

    def made(self, way: Call) -> tuple[torch.Tensor, ...]:
        for room in (self.rows, self.codes, self.scales):
            room.fill_(torch.nan if room.is_floating_point() else 0x7F)
        way()
        return self.rows.view(torch.int16).clone(), self.codes.clone(), self.scales.clone()


def check_norms(counts: Sequence[int], sizes: Sequence[int], device: torch.device) -> dict[str, Any]:
    """What differs between a norm that quantises, with its rows and without, and a norm whose rows are quantised."""
    compared, differing = 0, []
    for hidden in sizes:
        for count in counts:
            case = NormCase.random(count, hidden, device)
            expected = case.made(case.in_two_steps)
            for kept in (True, False):
                got = case.made(partial(case.fused, kept=kept))
                compared += 1
                if not all(map(torch.equal, got[not kept :], expected[not kept :])):
                    differing.append(f"{count} rows of {hidden}{', which are kept' if kept else ''}")
    return {"layer": NORM, "compared": compared, "differing": differing, "failed": []}


def time_norms(count: int, device: torch.device, measure: Callable[[list[Call]], float] = timed) -> dict[str, Any]:
    """Microseconds of a norm, of one and the quantisation of its rows, and of one that does both."""
    case = NormCase.random(count, TIMED_HIDDEN, device)
    ways: dict[str, Call] = {NORM: case.plain, "norm, quantise": case.in_two_steps, "codes": case.fused}
    return {"rows": count, "microseconds": {name: measure([way] * 4) for name, way in ways.items()}}
