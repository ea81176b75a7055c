"""Random rows of logits with random sampling parameters, as the GPU's sampling ops take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from slipstream_kernels.ops.gpu.sampling_table import (
    ENDS_OUTPUT,
    IN_PROMPT,
    SamplingTensors,
    allocate_sampling_tensors,
    pack_line,
)
from slipstream_kernels.token_tree import MAX_ROWS

_Tensor: TypeAlias = torch.Tensor
Inputs: TypeAlias = tuple[_Tensor, _Tensor, _Tensor, _Tensor, _Tensor, _Tensor, _Tensor, SamplingTensors]


@dataclass(frozen=True, slots=True)
class SamplingCase:
    """The inputs of `process` and `sample`, in their order."""

    logits: torch.Tensor
    logit_rows: torch.Tensor
    positions: torch.Tensor
    lines: torch.Tensor
    paths: torch.Tensor
    depths: torch.Tensor
    resolved_ids: torch.Tensor
    tensors: SamplingTensors

    @property
    def inputs(self) -> Inputs:
        rows = self.logit_rows, self.positions, self.lines, self.paths, self.depths, self.resolved_ids
        return self.logits, *rows, self.tensors

    @property
    def device(self) -> torch.device:
        return self.logits.device


def plain_case(rows: int, vocab_size: int, device: torch.device, **parameters: Any) -> SamplingCase:
    """Rows of requests that all have the same `parameters`, those of `pack_line`; no trees."""
    rng = np.random.default_rng(parameters.get("seed", 0))
    tensors = allocate_sampling_tensors(rows, vocab_size, device)
    tensors.params.copy_(torch.from_numpy(np.tile(pack_line(**parameters), (rows, 1))))

    def integers(values: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, np.int32)).to(device)

    return SamplingCase(
        logits=torch.from_numpy(rng.normal(size=(rows, vocab_size)).astype(np.float32) * 3).to(device),
        logit_rows=integers(np.arange(rows)),
        positions=integers(rng.integers(0, 4096, rows)),
        lines=integers(np.arange(rows)),
        paths=integers(np.full((rows, MAX_ROWS), 2**30)),
        depths=integers(np.zeros(rows)),
        resolved_ids=integers(rng.integers(0, vocab_size, rows)),
        tensors=tensors,
    )


def random_case(
    rows: int, vocab_size: int, device: torch.device, *, seed: int, temperature: float | None = None
) -> SamplingCase:
    """Rows with bias, penalties, paths, forbidden tokens and filters, each on for some of them; among them padding.

    Logits have ties, both zeros and minus infinities. Rows of the pass are twice as many as rows of logits.
    """
    rng = np.random.default_rng(seed)
    lines, total = 4 + rows // 4, 2 * rows

    def some(value: float, off: float) -> float:
        return value if rng.random() < 0.5 else off

    case = plain_case(total, vocab_size, device, seed=seed)
    params = np.stack(
        [
            pack_line(
                temperature=some(rng.uniform(0.1, 2), 0) if temperature is None else temperature,
                top_k=int(some(int(rng.integers(1, vocab_size + 3)), 0)),
                top_p=some(rng.uniform(0.05, 1), 1),
                min_p=some(rng.uniform(0, 0.3), 0),
                seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
                choice=int(rng.integers(0, 2**32)),
                repetition=some(rng.uniform(0.5, 2), 1),
                presence=some(rng.uniform(-2, 2), 0),
                frequency=some(rng.uniform(-2, 2), 0),
                has_bias=rng.random() < 0.5,
                min_position=int(some(int(rng.integers(0, 4096)), 0)),
            )
            for _ in range(lines)
        ]
    )
    flags = IN_PROMPT * (rng.random((lines, vocab_size)) < 0.3) + ENDS_OUTPUT * (rng.random((lines, vocab_size)) < 0.1)
    logits = case.logits.cpu().numpy()[:rows]
    logits[::2] = np.round(logits[::2])
    logits[::5] *= rng.integers(-1, 2, logits[::5].shape)
    logits[::3][rng.random(logits[::3].shape) < 0.1] = -np.inf
    few = rng.integers(0, vocab_size, 8)  # so that paths hold some tokens more than once

    def on_device(array: Any, dtype: Any = np.int32) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array, dtype)).to(device)

    pick = np.where(rng.random(rows) < 0.1, -1, np.sort(rng.choice(total, rows, replace=False)))
    tokens = np.where(rng.random(total) < 0.5, rng.choice(few, total), rng.integers(0, vocab_size, total))
    return SamplingCase(
        logits=on_device(logits, np.float32),
        logit_rows=on_device(pick),
        positions=case.positions,
        lines=on_device(rng.integers(0, lines, total)),
        paths=on_device(rng.integers(0, total, (total, MAX_ROWS))),
        depths=on_device(np.where(rng.random(total) < 0.1, MAX_ROWS, rng.integers(0, 6, total))),
        resolved_ids=on_device(tokens),
        tensors=SamplingTensors(
            params=on_device(params),
            token_flags=on_device(flags, np.uint8),
            output_counts=on_device(rng.integers(0, 3, (lines, vocab_size))),
            bias=on_device(rng.normal(size=(lines, vocab_size)), np.float32),
        ),
    )
