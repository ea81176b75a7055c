"""What a text's pass computes, by the kernels' twins."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.eagle_forward import EagleForward
from slipstream_kernels.models.gpu.draft.networks.eagle_weights import EagleWeights, random_eagle3
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundItem
from slipstream_kernels.ops.rope import Rope

LIMITS = DraftLimits(max_depth=2, width=2, max_tokens=512, max_context=256, max_sessions=4, chunk=32)
HIDDEN, HEAD_DIM = 64, 64


@pytest.fixture
def weights() -> EagleWeights:
    return random_eagle3(
        hidden=HIDDEN, intermediate=96, heads=2, kv_heads=1, head_dim=HEAD_DIM, vocab=128, entries=80, device="cpu"
    )


def text(line: int, rows: int) -> tuple[list[int], torch.Tensor]:
    """Tokens and states."""
    generator = torch.Generator().manual_seed(line)
    tokens = torch.randint(128, (rows,), generator=generator).tolist()
    return tokens, torch.randn(rows, 3 * HIDDEN, generator=generator).bfloat16()


class Counted:
    """A round whose linear layers are counted: [(outputs, inputs, rows)]."""

    def __init__(self, weights: EagleWeights) -> None:
        self.layers: list[tuple[int, int, int]] = []
        ops = draft_ops.twins()
        plain, gated = ops.layers.linear, ops.layers.gated_linear

        def linear(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, **named: torch.Tensor) -> None:
            self.layers.append((*weight.shape, len(x)))
            plain(x, weight, out, **named)

        def gated_linear(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
            self.layers.append((*weight.shape, len(x)))
            gated(x, weight, out)

        ops = replace(ops, layers=replace(ops.layers, linear=linear, gated_linear=gated_linear))
        self.round = DraftRound(EagleForward(weights, ops), LIMITS, rope=Rope(1e4))
        for line in range(4):
            self.round.set_pages(line, 0, range(line * 8, line * 8 + 8))


def test_rows_that_no_tree_starts_from_end_with_their_keys_and_values(weights: EagleWeights) -> None:
    counted = Counted(weights)
    fc, qkv, rest = (HIDDEN, 3 * HIDDEN), (4 * HEAD_DIM, 2 * HIDDEN), [(64, 128), (192, 64), (64, 96)]
    tokens, states = text(0, 20)
    counted.round.compute_text([RoundItem(0, 0, 0, tokens)], [states])
    rows = LIMITS.chunk
    assert counted.layers == [(*fc, rows), (*qkv, rows)]

    counted.layers.clear()
    items = [RoundItem(line, 0, 0, text(line, 3)[0], 4, 2) for line in (1, 2, 3)]
    counted.round.draft(items, [text(line, 3)[1] for line in (1, 2, 3)], filtered=False)
    rows = counted.layers[0][2]
    assert rows >= 9
    sessions = counted.layers[2][2]
    assert 3 <= sessions < rows
    assert counted.layers[:5] == [(*fc, rows), (*qkv, rows), *((*shape, sessions) for shape in rest)]


def test_what_the_last_row_leaves_is_what_it_leaves_alone(weights: EagleWeights) -> None:
    whole, parts = Counted(weights).round, Counted(weights).round
    tokens, states = text(5, 12)
    parts.compute_text([RoundItem(0, 0, 0, tokens[:11])], [states[:11]])
    whole.compute_text([RoundItem(0, 0, 0, tokens[:8])], [states[:8]])
    trees = [
        parts.draft([RoundItem(0, 11, 11, tokens[11:], 6, 2)], [states[11:]], filtered=False),
        whole.draft([RoundItem(0, 8, 8, tokens[8:], 6, 2)], [states[8:]], filtered=False),
    ]
    assert trees[0] == trees[1]
    roots = [draft.forward._allocated.roots[:1] for draft in (parts, whole)]
    assert roots[0].any()
    assert torch.allclose(*(each.float() for each in roots), atol=1e-2)
