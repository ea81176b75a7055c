"""Rounds by captured graphs against the twins in torch."""

from dataclasses import fields, replace

import pytest
import torch

from slipstream_kernels.models.gpu.draft import draft_ops
from slipstream_kernels.models.gpu.draft.draft_limits import DraftLimits
from slipstream_kernels.models.gpu.draft.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.eagle_forward import EagleForward
from slipstream_kernels.models.gpu.draft.eagle_weights import random_eagle3
from slipstream_kernels.models.gpu.draft.round_plan import RoundItem
from slipstream_kernels.ops.gpu.sampling_table import pack_line

pytestmark = pytest.mark.gpu

RULES = [{}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.7, "seed": 9, "top_p": 0.9, "top_k": 40}]
LENGTHS = (1, 70, 300)


def on_cpu(record):
    moved = {entry.name: getattr(record, entry.name) for entry in fields(record)}
    return replace(record, **{name: each.cpu() for name, each in moved.items() if isinstance(each, torch.Tensor)})


def trees(draft, text, states):
    """Of two rounds after the text that each session begins with."""
    for line in range(len(RULES)):
        draft.set_pages(line, 0, range(line * 20, line * 20 + 20))
        with draft.change_tables():
            draft.tables.set_line(line, pack_line(**RULES[line]))
    begins = [0] * len(LENGTHS)
    for line, length in enumerate(LENGTHS):
        while begins[line] < length - 1:
            end = min(begins[line] + 64, length - 1)
            rows = slice(begins[line], end)
            draft.compute_text([RoundItem(line, rows.start, rows.start, text[line][rows])], [states[line][rows]])
            begins[line] = end
    made = []
    for rows in (1, 4):
        items = [RoundItem(line, at, at, text[line][at : at + rows], 20, 4) for line, at in enumerate(begins)]
        parts = [states[line][at : at + rows] for line, at in enumerate(begins)]
        made += draft.draft(items, parts, filtered=True)
        begins = [at + rows for at in begins]
    return made


@pytest.mark.parametrize("width", [1, 4])
def test_graphs_draft_what_the_twins_draft(width):
    weights = random_eagle3(
        hidden=384, intermediate=1024, heads=3, kv_heads=1, head_dim=128, vocab=4096, entries=2048, device="cuda"
    )
    twin = replace(on_cpu(weights), layers=tuple(map(on_cpu, weights.layers)))
    limits = DraftLimits(
        max_depth=4, width=width, max_tokens=1024, max_context=512, max_sessions=4, sizes=(4,), chunk=64
    )
    generator = torch.Generator().manual_seed(0)
    text = [torch.randint(4096, (length + 8,), generator=generator).tolist() for length in LENGTHS]
    states = [torch.randn(length + 8, 3 * 384, generator=generator).bfloat16() for length in LENGTHS]
    on_device = DraftRound(EagleForward(weights, draft_ops.kernels()), limits, rope_theta=1e4)
    got = trees(on_device, text, [each.cuda() for each in states])
    wanted = trees(DraftRound(EagleForward(twin, draft_ops.twins()), limits, rope_theta=1e4), text, states)
    assert [len(tree) for tree in got] == [len(tree) for tree in wanted]
    alike = total = 0
    for ours, twins in zip(got, wanted, strict=True):
        own = {
            (ours.token_ids[node], *map(ours.token_ids.__getitem__, ours.path(node))): node for node in range(len(ours))
        }
        for node in range(len(twins)):
            path = (twins.token_ids[node], *map(twins.token_ids.__getitem__, twins.path(node)))
            total += 1
            if path in own:
                alike += 1
                assert abs(ours.log_probs[own[path]] - twins.log_probs[node]) < 0.2
    assert alike >= 0.8 * total
