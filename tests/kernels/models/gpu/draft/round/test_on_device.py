"""Rounds by captured graphs against the twins in torch."""

from dataclasses import fields, replace

import pytest
import torch

from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.eagle_forward import EagleForward
from slipstream_kernels.models.gpu.draft.networks.eagle_weights import random_eagle3
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundItem
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.ops.rope import Rope

pytestmark = pytest.mark.gpu

RULES = [{}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.7, "seed": 9, "top_p": 0.9, "top_k": 40}]
LENGTHS = (1, 70, 300)
FEATURES = 3 * 384


def on_cpu(record):
    moved = {entry.name: getattr(record, entry.name) for entry in fields(record)}
    return replace(record, **{name: each.cpu() for name, each in moved.items() if isinstance(each, torch.Tensor)})


def begun(draft, text, states):
    """Where each session goes on after the text that it begins with."""
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
    return begins


def trees(draft, text, states):
    """Of two rounds after the text that each session begins with."""
    begins = begun(draft, text, states)
    made = []
    for rows in (1, 4):
        items = [RoundItem(line, at, at, text[line][at : at + rows], 20, 4) for line, at in enumerate(begins)]
        parts = [states[line][at : at + rows] for line, at in enumerate(begins)]
        made += draft.draft(items, parts, filtered=True)
        begins = [at + rows for at in begins]
    return made


@pytest.fixture(scope="module", params=[1, 4])
def made(request):
    """A round of that width on the device, and its weights."""
    weights = random_eagle3(
        hidden=384, intermediate=1024, heads=3, kv_heads=1, head_dim=128, vocab=4096, entries=2048, device="cuda"
    )
    limits = DraftLimits(
        max_depth=4, width=request.param, max_tokens=1024, max_context=512, max_sessions=4, sizes=(4,), chunk=64
    )
    return DraftRound(EagleForward(weights, draft_ops.kernels()), limits, rope=Rope(1e4)), weights


@pytest.fixture(scope="module")
def texts():
    """Tokens and states, by session."""
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(4096, (length + 8,), generator=generator).tolist() for length in LENGTHS]
    return tokens, [torch.randn(length + 8, FEATURES, generator=generator).bfloat16() for length in LENGTHS]


def test_graphs_draft_what_the_twins_draft(made, texts):
    on_device, weights = made
    twin = replace(on_cpu(weights), layers=tuple(map(on_cpu, weights.layers)))
    text, states = texts
    got = trees(on_device, text, [each.cuda() for each in states])
    wanted = trees(DraftRound(EagleForward(twin, draft_ops.twins()), on_device.limits, rope=Rope(1e4)), text, states)
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


@pytest.mark.parametrize("accepted", [(0, 1, 3), (4, 0, 2)])
def test_a_round_behind_a_pass_is_the_one_begun_after_it(made, texts, accepted):
    """Bit for bit, and with results and states that come late and go as soon as they are read."""
    draft, _ = made
    tokens, states = texts
    begins = begun(draft, tokens, [each.cuda() for each in states])
    rows = draft.limits.text_rows
    results = torch.full((3, RESULT_WIDTH), -1, dtype=torch.int32, device="cuda")
    source = torch.full((3 * rows * FEATURES + 5,), float("nan"), dtype=torch.bfloat16, device="cuda")
    decided, filled = results.clone(), source.clone()
    asked, laid, known, parts = [], [], [], []
    for line, (at, count) in enumerate(zip(begins, accepted, strict=True)):
        asked.append((2 - line, 5 + line * rows * FEATURES))
        left = slice(at, at + count + 1)
        decided[2 - line, 0] = count
        decided[2 - line, 66 : 67 + count] = torch.tensor(tokens[line][left])
        filled[asked[-1][1] :][: (count + 1) * FEATURES] = states[line][left].flatten()
        laid.append(RoundItem(line, at, at, (0,) * rows, 20, 4))
        known.append(laid[-1]._replace(token_ids=tokens[line][left]))
        parts.append(states[line][left].cuda())
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(10_000_000)
        results.copy_(decided)
        source.copy_(filled)
        ready = other.record_event()
        ticket = draft.follow(laid, asked, results, source, ready=ready, filtered=True)
        other.wait_event(ticket.states_read)
        results.fill_(-1)
        source.fill_(float("nan"))
    assert ticket.trees() == draft.draft(known, parts, filtered=True)
