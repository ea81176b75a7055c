"""Samples rows of a pass again, of which only some tokens may be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops
from slipstream_kernels.ops.gpu.sampling import sampling_workspace
from slipstream_kernels.ops.gpu.sampling_table import SamplingTensors
from slipstream_kernels.token_tree import MAX_ROWS


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """n rows of a pass's logits, each with its request's line, its position and its mask."""

    rows: Int32
    """[n], rows of the pass's logits"""
    lines: Int32
    """[n]"""
    positions: Int32
    """[n], of the row itself, which decides the next"""
    paths: Sequence[Sequence[int]]
    """Tokens that lead to each row and are not among its line's output counts."""
    masks: npt.NDArray[np.uint32]
    """[n, words]: bit v % 32 of word v // 32 says whether token v may be chosen"""


def sample_masked(logits: torch.Tensor, wanted: MaskedRows, tables: SamplingTensors, ops: Ops) -> list[int]:
    """Return the token of each row, -1 as of `sample`; float32 logits [rows of the pass, vocab] are left as they are.

    Minus infinity is put where a token may not be chosen, before bias and penalties, which leave it as it is.
    """
    n, vocab_size, device = len(wanted.rows), logits.shape[1], logits.device
    words = torch.from_numpy(wanted.masks.view(np.int32)).to(device)
    rows, lines, positions = torch.from_numpy(np.stack([wanted.rows, wanted.lines, wanted.positions])).to(device)
    bits = torch.arange(32, dtype=torch.int32, device=device)
    allowed = ((words.unsqueeze(-1) >> bits) & 1).view(n, -1)[:, :vocab_size]
    x = logits[rows.long()].masked_fill_(allowed == 0, float("-inf"))
    paths, depths, tokens = _paths(wanted.paths)
    out = torch.empty(n, dtype=torch.int32, device=device)
    ops.sample(
        x,
        torch.arange(n, dtype=torch.int32, device=device),
        positions.contiguous(),
        lines.contiguous(),
        paths.to(device),
        depths.to(device),
        tokens.to(device),
        tables,
        sampling_workspace(n, vocab_size, device),
        out,
    )
    return [int(token) for token in out.tolist()]


def _paths(paths: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Paths as `sample` takes them: places of tokens int32 [n, MAX_ROWS], their number [n], all tokens."""
    places = np.zeros((len(paths), MAX_ROWS), np.int32)
    tokens: list[int] = []
    for row, path in enumerate(paths):
        places[row, : len(path)] = range(len(tokens), len(tokens) + len(path))
        tokens += path
    depths = np.array([len(path) for path in paths], np.int32)
    return torch.from_numpy(places), torch.from_numpy(depths), torch.tensor(tokens or [0], dtype=torch.int32)
