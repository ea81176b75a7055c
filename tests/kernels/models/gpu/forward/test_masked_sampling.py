"""Rows sampled again under masks are those that the CPU's sampler gives."""

from __future__ import annotations

import numpy as np
import torch

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.models.gpu.forward.masked_sampling import MaskedRows, sample_masked
from slipstream_kernels.models.gpu.forward.ops_namespace import twins
from slipstream_kernels.ops.gpu.sampling_table import pack_line

VOCAB = 100


def test_masks_and_paths_are_those_of_each_row() -> None:
    limits = GpuLimits(
        max_running=3, max_nodes=4, step_nodes=8, prefill_chunk=8, page_size=4, num_pages=4, max_context=16
    )
    tables = RequestTables(limits, VOCAB, "cpu")
    tables.set_line(1, pack_line(presence=2.0), prompt_ids=[5], output_ids=[6])
    tables.words.copy_(torch.from_numpy(tables._copy))
    logits = torch.linspace(0, 1, VOCAB).repeat(4, 1)
    masks = np.zeros((4, 4), np.uint32)
    for row, allowed in enumerate([(3, 70), (97, 98), (97, 98), ()]):
        for token in allowed:
            masks[row, token // 32] |= np.uint32(1 << (token % 32))
    wanted = MaskedRows(
        rows=np.array([3, 0, 1, 2], np.int32),
        lines=np.array([0, 1, 1, 0], np.int32),
        positions=np.array([4, 5, 6, 7], np.int32),
        paths=[(), (), (98,), ()],
        masks=masks,
    )
    before = logits.clone()
    assert sample_masked(logits, wanted, tables.sampling, twins()) == [70, 98, 97, -1]
    assert torch.equal(logits, before)
