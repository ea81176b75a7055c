"""The GPU's sampling inputs as the CPU's ops take them."""

from __future__ import annotations

import numpy as np

from benchmarks.kernels.sampling_cases import SamplingCase
from slipstream_kernels.ops.gpu import sampling_table as table
from slipstream_kernels.ops.sampling import SamplingRows


def cpu_rows(case: SamplingCase) -> tuple[list[int], np.ndarray, SamplingRows]:
    """Indices of rows of logits that are no padding, their logits, and how they are sampled."""
    logit_rows = case.logit_rows.cpu().numpy()
    kept = np.flatnonzero(logit_rows >= 0)
    rows = logit_rows[kept]
    lines = case.lines.cpu().numpy()[rows]
    position = case.positions.cpu().numpy()[rows] + 1
    words = case.tensors.params.cpu().numpy()[lines]
    floats = words.view(np.float32)
    flags, counts, bias = (
        each.cpu().numpy() for each in (case.tensors.token_flags, case.tensors.output_counts, case.tensors.bias)
    )
    paths, depths, tokens = (each.cpu().numpy() for each in (case.paths, case.depths, case.resolved_ids))
    vocab = np.arange(flags.shape[1], dtype=np.int32)
    has = words[:, table.FLAGS, None] & np.array([table.HAS_BIAS, table.HAS_MIN_TOKENS]) != 0
    forbidden = has[:, 1] & (position < words[:, table.MIN_POSITION])
    none = np.zeros(0, np.int32)
    path_lists = [tokens[paths[row, : depths[row]]] for row in rows]
    bias_lists = [vocab if biased else none for biased in has[:, 0]]
    masks = [
        np.flatnonzero(flags[line] & table.ENDS_OUTPUT).astype(np.int32) if on else none
        for line, on in zip(lines, forbidden, strict=True)
    ]

    def offsets(lists: list[np.ndarray]) -> np.ndarray:
        return np.cumsum([0, *map(len, lists)], dtype=np.int32)

    sampling = SamplingRows(
        position=position.astype(np.int32),
        temperature=floats[:, table.TEMPERATURE].copy(),
        top_k=words[:, table.TOP_K].copy(),
        top_p=floats[:, table.TOP_P].copy(),
        min_p=floats[:, table.MIN_P].copy(),
        seed=words[:, [table.SEED_LOW, table.SEED_HIGH]].copy().view(np.uint64)[:, 0],
        choice=words[:, table.CHOICE].copy().view(np.uint32),
        repetition=floats[:, table.REPETITION].copy(),
        presence=floats[:, table.PRESENCE].copy(),
        frequency=floats[:, table.FREQUENCY].copy(),
        history=np.where(words[:, table.FLAGS] & table.HAS_PENALTIES, lines, -1).astype(np.int32),
        prompt_seen=flags & table.IN_PROMPT,
        output_counts=counts,
        path_offsets=offsets(path_lists),
        path_tokens=np.concatenate([none, *path_lists]),
        bias_offsets=offsets(bias_lists),
        bias_ids=np.concatenate([none, *bias_lists]),
        bias_values=np.concatenate(
            [np.zeros(0, np.float32), *(bias[line][ids] for line, ids in zip(lines, bias_lists, strict=True))]
        ),
        mask_offsets=offsets(masks),
        mask_ids=np.concatenate([none, *masks]),
    )
    return kept.tolist(), np.ascontiguousarray(case.logits.cpu().numpy()[kept]), sampling
