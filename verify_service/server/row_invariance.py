"""A start-up check of a device: a row's result depends neither on the rows beside it nor on how it came to be a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.ops.gpu.sampling_table import pack_line

if TYPE_CHECKING:
    from slipstream_kernels.models.gpu.gpu_model import GpuModel

IntArray = NDArray[np.int32]

_ROWS = 70
"""More than a block of positions."""
_CHUNKS = ((_ROWS,), (2, 3, 4, 5, 9, 17, 30), (65, 5))
_TOP = 20
_LINE = 0


def probe_pass_invariance(model: GpuModel, *, seed: int = 0) -> bool:
    """Whether random tokens get equal bits one a pass, in chunks, as nodes of a tree, and beside other requests.

    Compares log-probabilities of each row's token and of the likeliest, as many rows as the model's limits allow.
    Overwrites the first pages and lines; to be called before any request runs.
    """
    limits = model.limits
    rows = min(_ROWS, limits.max_context, limits.num_pages * limits.page_size)
    tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, rows).astype(np.int32)
    model.set_line(_LINE, pack_line())
    model.set_pages(_LINE, 0, np.arange(-(-rows // limits.page_size), dtype=np.int32))
    alone = [next(_logits(model, _chunk(tokens, at, at + 1))) for at in range(rows)]
    return all(_in_chunks(model, tokens, sizes, alone) for sizes in _CHUNKS) and (
        _as_tree(model, tokens, alone) and _in_company(model, tokens[0], alone[0])
    )


def _in_chunks(model: GpuModel, tokens: IntArray, sizes: Sequence[int], alone: Sequence[bytes]) -> bool:
    start = 0
    for size in sizes:
        end = min(start + size, start + model.limits.prefill_chunk, len(tokens))
        if end > start:
            plan = _chunk(tokens, start, end)
            count = min(end - start, model.limits.max_decode_rows)
            first = np.array([[0, 1, _LINE, end - count + 1]], dtype=np.int32)
            plan = replace(plan, logit_rows=np.arange(plan.rows, dtype=np.int32)[-count:], deciding=first)
            if list(_logits(model, plan)) != alone[end - count : end]:
                return False
        start = end
    return True


def _as_tree(model: GpuModel, tokens: IntArray, alone: Sequence[bytes]) -> bool:
    """The last tokens as a chain of nodes below the one before them."""
    limits = model.limits
    nodes = min(limits.max_nodes - 1, limits.scratch_slots, len(tokens) - 1)
    root = len(tokens) - 1 - nodes
    count = np.arange(nodes + 1, dtype=np.int32)
    plan = _chunk(tokens, root, len(tokens))
    slots = model.first_scratch_slot - 1 + count
    slots[0] = plan.write_slots[0]
    plan = replace(
        plan,
        write_slots=slots,
        prefix_lengths=np.full(nodes + 1, root + 1, dtype=np.int32),
        parents=count - 2,
        root_rows=np.zeros(nodes + 1, dtype=np.int32),
        logit_rows=count,
        deciding=np.array([[0, nodes + 1, _LINE, root + 1]], dtype=np.int32),
        decodes=np.array([[0, nodes + 1, _LINE, root + 1]], dtype=np.int32),
        prefills=np.zeros((0, 4), dtype=np.int32),
        has_trees=nodes > 0,
    )
    return list(_logits(model, plan)) == alone[root:]


def _in_company(model: GpuModel, token: np.int32, alone: bytes) -> bool:
    """A first token on as many lines as there are, and pages for."""
    limits = model.limits
    lines = np.arange(min(limits.max_running, limits.num_pages), dtype=np.int32)
    for line in lines.tolist():
        model.set_line(line, pack_line())
        model.set_pages(line, 0, [line])
    ones = np.ones_like(lines)
    plan = PassPlan(
        token_ids=ones * token,
        positions=ones - 1,
        write_slots=lines * np.int32(limits.page_size),
        lines=lines,
        prefix_lengths=ones,
        parents=ones * -2,
        root_rows=lines,
        logit_rows=lines,
        deciding=np.stack([lines, ones, lines, ones], axis=1),
        decodes=np.stack([lines, ones, lines, ones], axis=1),
    )
    return all(logits == alone for logits in _logits(model, plan))


def _chunk(tokens: IntArray, start: int, end: int) -> PassPlan:
    """Tokens at their positions on the probe's line, whose pages lie in order."""
    slots = np.arange(start, end, dtype=np.int32)
    return PassPlan.chunk(tokens[start:end], line=_LINE, start=start, slots=slots)


def _logits(model: GpuModel, plan: PassPlan) -> Iterator[bytes]:
    """What is seen of each row of logits: bits that change with it."""
    ticket = model.launch(plan)
    rows = np.arange(len(plan.logit_rows), dtype=np.int32)
    chosen = plan.token_ids[plan.logit_rows]
    values, ranks, ids, top = model.logprobs(ticket, rows, chosen, min(_TOP, model.config.vocab_size))
    for row in rows:
        yield values[row].tobytes() + ranks[row].tobytes() + ids[row].tobytes() + top[row].tobytes()
