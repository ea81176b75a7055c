"""States from a model for GPUs, made of its ops' twins on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream_kernels.models.capture_layers import Bits
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.gpu.forward.ops_namespace import twins
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from support.features import states_of
from training.features.gpu_reader import GpuReader, gpu_limits
from training.features.reader import open_reader
from training.features.settings import Machine

BOUNDARIES = (3, 1)
LENGTHS = (20, 1, 33, 1, 2, 7, 24)
"""With passes of 24 rows: sequences and remainders of one token, one over three passes, one that fills one."""


@pytest.fixture(scope="module")
def reader(tiny_model: Path) -> GpuReader:
    limits = gpu_limits(BOUNDARIES, 24, max(LENGTHS), 0.5)
    return GpuReader(GpuModel.load(tiny_model, limits, device="cpu", ops=twins(), progress=False), BOUNDARIES)


def as_floats(bits: Bits) -> torch.Tensor:
    return torch.from_numpy(bits.copy()).view(torch.bfloat16).float()


def test_each_row_is_its_positions(reader: GpuReader, tiny_model: Path) -> None:
    """The twins' arithmetic is another one: rows agree as far as bfloat16 does, and no two positions agree as well."""
    random = np.random.default_rng(0)
    texts = [random.integers(3, 512, length).astype(np.int32) for length in LENGTHS]
    model = CausalLM.load(tiny_model, threads=1)
    expected = torch.cat([as_floats(states_of(model, text.tolist(), BOUNDARIES)) for text in texts])
    for _ in range(2):
        passes = list(reader.states(enumerate(texts)))
        assert all(len(rows) == sum(map(len, pieces)) <= 24 for pieces, rows in passes)
        found = as_floats(np.concatenate([rows for _, rows in passes]))
        apart = torch.cdist(found, expected)
        assert apart.argmin(dim=1).tolist() == list(range(sum(LENGTHS)))
        assert bool((apart.diagonal() < 0.03 * torch.linalg.norm(expected, dim=1)).all())


def test_states_outlive_the_passes_behind_them(reader: GpuReader) -> None:
    texts = [np.full(24, token, np.int32) for token in range(5, 12)]
    kept = [(rows, rows.copy()) for _, rows in reader.states(enumerate(texts))]
    assert all(np.array_equal(rows, copy) for rows, copy in kept)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told(tiny_model: Path) -> None:
    with pytest.raises(ValueError, match=r"device cuda is not available: PyTorch .* finds no GPU"):
        open_reader(tiny_model, BOUNDARIES, Machine("cuda"), longest=10)


@pytest.mark.gpu
def test_passes_of_a_gpu_give_the_bits_of_single_rows(tiny_model: Path) -> None:
    random = np.random.default_rng(0)
    texts = [random.integers(3, 512, length).astype(np.int32) for length in (*LENGTHS, 300)]
    found = [
        np.concatenate([rows for _, rows in open_reader(
            tiny_model, BOUNDARIES, Machine("cuda", rows=size, memory_utilization=0.5), longest=300
        ).states(enumerate(texts))])
        for size in (1, 24, 512)
    ]  # fmt: skip
    assert all(np.array_equal(found[0], each) for each in found[1:])
