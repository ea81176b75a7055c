"""Items that are decided again under masks, behind their pass: tokens, keys, values and states, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream_kernels.models.gpu.forward.masked_sampling import MaskedRows, MaskRoom
from slipstream_kernels.models.gpu.forward.ops_namespace import kernels, twins
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel, PassHandle
from slipstream_kernels.models.gpu.graph.hidden_state_copies import HiddenStateCopies
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from slipstream_kernels.token_tree import TokenTree
from support.gpu_passes import Span, pass_of

LIMITS = GpuLimits(
    max_running=3, max_nodes=8, step_nodes=16, prefill_chunk=32, num_pages=12, max_context=64, boundaries=1
)
PROMPTS = [np.random.default_rng(line).integers(3, 512, 9 + line).tolist() for line in range(3)]
PAGES = [range(4 * line, 4 * line + 4) for line in range(3)]
TREE = TokenTree((40, 41, 42, 43, 44), (-1, -1, 1, 1, 3))
"""Below every root. The path that masks leave is 41, 43, 44."""


INTERPRETED = () if torch.cuda.is_available() else pytest.mark.slow


@pytest.fixture(params=["twins", pytest.param("kernels", marks=INTERPRETED)])
def model(request: pytest.FixtureRequest, tiny_model: Path) -> GpuModel:
    """With kernels on a device, or in the interpreter."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    of = {"ops": twins(), "device": "cpu"} if request.param == "twins" else {"ops": kernels(), "device": device}
    model = GpuModel.load(tiny_model, LIMITS, progress=False, **of)
    for store in (model.kv.keys, model.kv.values, *model._pool._storage.values()):
        store.fill_(0)  # the interpreter warns of what memory may hold
    if device == "cuda":
        torch.cuda.synchronize()  # passes run on a stream of their own
    for line, pages in enumerate(PAGES):
        model.set_pages(line, 0, pages)
        if line == 1:
            seen = {"prompt_ids": PROMPTS[1][:-1], "output_ids": PROMPTS[1][-1:]}
            model.set_line(1, pack_line(temperature=0.9, top_p=0.9, seed=3, presence=1.5), **seen)
    model.launch(pass_of(LIMITS, [Span(line, prompt[:-1], 0, PAGES[line]) for line, prompt in enumerate(PROMPTS)]))
    return model


def only(*tokens: int) -> np.ndarray:
    words = np.zeros(16, np.uint32)
    for token in tokens:
        words[token >> 5] |= np.uint32(1 << (token & 31))
    return words


def drafted(model: GpuModel, **options: object) -> PassHandle:
    """The roots of all lines, each with the tree."""
    spans = [Span(line, prompt[-1:], len(prompt) - 1, PAGES[line], TREE) for line, prompt in enumerate(PROMPTS)]
    plan = pass_of(LIMITS, spans)
    packed = np.array([(6 * line, order, line) for line in range(3) for order in range(-1, 3)], np.int64)
    return model.launch(plan, lambda: HiddenStateCopies(packed=packed), **options)  # type: ignore[arg-type]


def walks(results: np.ndarray) -> list[tuple[list[int], list[int]]]:
    return [(row[2 : 2 + row[0]], row[66 : 67 + row[0]]) for row in results.tolist()]


def next_logits(model: GpuModel, tokens: list[int]) -> torch.Tensor:
    """Of the row behind what line 2 has."""
    start = len(PROMPTS[2]) + len(tokens) - 1
    ticket = model.launch(pass_of(LIMITS, [Span(2, tokens[-1:], start, PAGES[2])]))
    model.wait()
    return ticket.logits.clone()


def test_masks_lead_along_another_path(model: GpuModel) -> None:
    model.capture((1,))
    every = drafted(model)
    plain = walks(every.results())
    assert plain[2][0] == [], "a random model does not follow the tree"
    of_rows = model._pool.of(every.bucket).states.clone()
    model.set_line(
        1,
        pack_line(temperature=0.9, top_p=0.9, seed=3, presence=1.5),
        prompt_ids=PROMPTS[1][:-1],
        output_ids=PROMPTS[1][-1:],
    )
    ticket = drafted(model, again=True)
    model.wait()
    logits = ticket.logits.clone()
    masks = {12: only(41), 14: only(43), 16: only(44), 17: only(7, 9)}
    rows = np.full(6, -1, np.int32)
    for place, (row, words) in enumerate(masks.items(), 1):
        rows[place], model.mask_rows[place] = row, words
    model.mask_rows[[0, 5]] = 0xFFFFFFFF
    model.decide_again(ticket, rows)
    found = walks(ticket.results())
    best = 7 if logits[17, 7] >= logits[17, 9] else 9
    assert found[:2] == plain[:2] and found[2] == ([1, 3, 4], [41, 43, 44, best])
    behind = ticket.again_seconds()
    assert (behind is None) == (ticket.times is None), "only a device has a clock"
    assert behind is None or behind.busy > 0.0
    before = ticket.unmasked()
    assert before is not None and walks(before)[:2] == plain[:2]
    states = ticket.states()
    assert states is not None and len(states) == 12
    kept = torch.from_numpy(states[8:].copy()).view(torch.bfloat16)
    assert torch.equal(kept, of_rows[[12, 14, 16, 17]].cpu())
    tokens = found[2][1]
    followed = next_logits(model, tokens)
    for at, token in enumerate([PROMPTS[2][-1], *tokens[:-1]]):  # the same tokens one by one
        model.launch(pass_of(LIMITS, [Span(2, [token], len(PROMPTS[2]) - 1 + at, PAGES[2])])).results()
    assert torch.equal(next_logits(model, tokens), followed)


def test_rows_are_sampled_again_as_they_are_behind_the_pass(model: GpuModel) -> None:
    """The root of the line with filters and penalties, whose counts are those before the step."""
    line = pack_line(temperature=0.9, top_p=0.9, seed=3, presence=1.5)
    seen = {"prompt_ids": PROMPTS[1][:-1], "output_ids": PROMPTS[1][-1:]}
    some = only(*range(0, 512, 3))
    tokens = []
    for again in (True, False):
        model.set_line(1, line, **seen)
        ticket = drafted(model, again=again)
        model.set_line(1, line, **seen)
        if again:
            model.mask_rows[0] = some
            model.decide_again(ticket, np.array([6], np.int32))
            tokens.append(walks(ticket.results())[1][1][0])
        else:
            ticket.results()
            tokens += model.sample_masked(ticket, MaskedRows(np.array([6, 6], np.int32), np.stack([some, some])))
            assert ticket.unmasked() is None
    assert len(set(tokens)) == 1 and tokens[0] % 3 == 0


def test_a_pass_that_nothing_changes_is_left_as_it_is(model: GpuModel) -> None:
    model.capture((1,))
    plain = drafted(model)
    expected = walks(plain.results())
    ticket = drafted(model, again=True)
    assert ticket.states_shape is None
    model.decide_again(ticket, np.zeros(0, np.int32))
    found = walks(ticket.results())
    assert found[::2] == expected[::2], "the line with penalties has got a token in between"
    assert ticket.unmasked() is None and ticket.states_shape is not None
    with pytest.raises(AssertionError):
        model.decide_again(ticket, np.zeros(0, np.int32))


def test_kernels_are_compiled_for_rows_that_are_none(model: GpuModel) -> None:
    ticket = drafted(model)
    before = ticket.results().copy()
    model._masked.meet(ticket.bucket)
    assert np.array_equal(before, model._pool.of(ticket.bucket).result[:3].cpu().numpy())


def test_the_room_is_as_large_as_was_planned() -> None:
    room = MaskRoom(LIMITS, 500, torch.device("cpu"))
    assert room.rows.shape == (LIMITS.max_decode_rows, 16)
    assert room._device.nbytes == MaskRoom.num_bytes(LIMITS, 500)
