from __future__ import annotations

import numpy as np
import torch

from slipstream_kernels.ops.gpu import sampling_table as table
from slipstream_kernels.ops.gpu.sampling_table import allocate_sampling_tensors, pack_line


def test_a_line_holds_its_values_bit_for_bit() -> None:
    line = pack_line(
        temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=0xFEDCBA9876543210, choice=2**32 - 1, repetition=1.1,
        presence=-0.5, frequency=0.25, has_bias=True, min_position=300,
    )  # fmt: skip
    assert line.dtype == np.int32
    assert line.shape == (table.FIELDS,)
    floats = line.view(np.float32)
    assert floats[[0, 2, 3, 7, 8, 9]].tolist() == np.array([0.7, 0.9, 0.1, 1.1, -0.5, 0.25], np.float32).tolist()
    assert line.view(np.uint32)[[4, 5, 6]].tolist() == [0x76543210, 0xFEDCBA98, 2**32 - 1]
    assert line[[1, 10, 11]].tolist() == [40, 7, 300]


def test_flags_name_only_what_changes_logits() -> None:
    assert pack_line()[table.FLAGS] == 0
    assert pack_line(presence=0.1)[table.FLAGS] == table.HAS_PENALTIES
    assert pack_line(repetition=1.5)[table.FLAGS] == table.HAS_PENALTIES
    assert pack_line(has_bias=True)[table.FLAGS] == table.HAS_BIAS
    assert pack_line(min_position=2**40)[table.FLAGS] == table.HAS_MIN_TOKENS
    assert pack_line(awaits_masks=True)[table.FLAGS] == table.AWAITS_MASKS


def test_allocated_lines_are_plain(device: torch.device) -> None:
    tensors = allocate_sampling_tensors(3, 50, device)
    assert np.array_equal(tensors.params.cpu().numpy(), np.tile(pack_line(), (3, 1)))
    for tensor in (tensors.token_flags, tensors.output_counts, tensors.bias):
        assert tensor.shape == (3, 50)
        assert not tensor.any()
