from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from slipstream_kernels.ops import philox as cpu
from slipstream_kernels.ops.gpu.launch import launch
from slipstream_kernels.ops.gpu.philox import (
    gumbel,
    gumbel_reference,
    noise_bits,
    noise_bound,
    noise_near,
    noise_of,
    philox,
)
from slipstream_kernels.ops.gpu.sampling_table import pack_line

NOISE_PAGE = Path(__file__).parents[4] / "docs" / "protocol" / "noise.md"


@triton.jit
def philox_kernel(counters: tl.tensor, keys: tl.tensor, out: tl.tensor, count: tl.constexpr) -> None:
    place = tl.arange(0, count)
    words = philox(
        tl.load(counters + place * 4).to(tl.uint32, bitcast=True),
        tl.load(counters + place * 4 + 1).to(tl.uint32, bitcast=True),
        tl.load(counters + place * 4 + 2).to(tl.uint32, bitcast=True),
        tl.load(counters + place * 4 + 3).to(tl.uint32, bitcast=True),
        tl.load(keys + place * 2).to(tl.uint32, bitcast=True),
        tl.load(keys + place * 2 + 1).to(tl.uint32, bitcast=True),
    )
    for word in tl.static_range(4):
        tl.store(out + place * 4 + word, words[word].to(tl.int32, bitcast=True))


@triton.jit
def noise_kernel(ids: tl.tensor, positions: tl.tensor, table: tl.tensor, out: tl.tensor) -> None:
    row = tl.program_id(0)
    bits = noise_bits(tl.load(ids + row + tl.arange(0, 1)), tl.load(positions + row), table, row)
    tl.store(out + row + tl.arange(0, 1), noise_of(bits))


@triton.jit
def bound_kernel(noise: tl.tensor, bound: tl.tensor, near: tl.tensor, block: tl.constexpr) -> None:
    bits = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(noise + bits, noise_of(bits))
    tl.store(bound + bits, noise_bound(bits))
    tl.store(near + bits, noise_near(bits))


def test_bits_equal_the_generator(device: torch.device) -> None:
    rng = np.random.default_rng(0)
    counters = rng.integers(0, 2**32, (256, 4), dtype=np.uint32)
    keys = rng.integers(0, 2**32, (256, 2), dtype=np.uint32)
    counters[:3], keys[:3] = [[0] * 4, [2**32 - 1] * 4, [1, 0, 2**31, 5]], [[0, 0], [2**32 - 1] * 2, [2**31, 1]]
    out = torch.zeros(256, 4, dtype=torch.int32, device=device)
    inputs = (torch.from_numpy(each.view(np.int32)).to(device) for each in (counters, keys))
    launch(philox_kernel, (1,), *inputs, out, count=256)
    expected = np.stack([cpu.philox_reference(counters[i], keys[i]) for i in range(256)])
    assert np.array_equal(out.cpu().numpy().view(np.uint32), expected)


def test_published_vectors(device: torch.device) -> None:
    """The table in the documentation: seed, choice, position, index, and last g."""
    columns = [r"(0x\w+)", r"(\d+)", r"(\d+)", r"(\d+)", r"0x\w+", r"\S+", r"(\S+)"]
    rows = re.findall(r"^\| " + r" \| ".join(columns) + r" \|$", NOISE_PAGE.read_text(), re.MULTILINE)
    assert len(rows) >= 8
    params = np.stack([pack_line(seed=int(seed, 16), choice=int(choice)) for seed, choice, *_ in rows])
    ids = torch.tensor([int(row[3]) for row in rows], dtype=torch.int32)
    positions = torch.tensor([int(row[2]) for row in rows], dtype=torch.int32)
    out = torch.full((len(rows),), torch.nan, device=device)
    inputs = (each.to(device) for each in (ids, positions, torch.from_numpy(params)))
    launch(noise_kernel, (len(rows),), *inputs, out)
    assert np.array_equal(out.cpu().numpy(), np.array([float(row[4]) for row in rows], np.float32))


def test_noise_of_rows(device: torch.device) -> None:
    """Kernel, twin and the CPU's reference, for requests on three lines and a vocabulary of no round size."""
    requests = [(7, 0), (2**63 + 5, 3), (2**64 - 1, 2**32 - 1)]
    params = torch.from_numpy(np.stack([pack_line(seed=seed, choice=choice) for seed, choice in requests])).to(device)
    lines = torch.tensor([2, 0, 1, 1], dtype=torch.int32, device=device)
    positions = torch.tensor([0, 5, 2**31 - 1, 4095], dtype=torch.int32, device=device)
    out = torch.full((4, 1500), torch.nan, device=device)
    gumbel(params, lines, positions, out)
    twin = torch.full_like(out, torch.nan)
    gumbel_reference(params, lines, positions, twin)
    for row in range(4):
        expected = cpu.gumbel_reference(*requests[int(lines[row])], int(positions[row]), np.arange(1500))
        assert np.array_equal(out[row].cpu().numpy(), expected)
        assert np.array_equal(twin[row].cpu().numpy(), expected)


def test_noise_and_its_bound_for_all_bits(device: torch.device) -> None:
    noise, bound, near = (torch.full((2**23,), torch.nan, device=device) for _ in range(3))
    launch(bound_kernel, (512,), noise, bound, near, block=2**14)
    over = bound.double() - noise.double()
    assert over.min() >= 0
    assert over.max() < 0.01
    assert (near.double() - noise.double()).abs().max() < 2e-5
    u = (torch.arange(2**23, dtype=torch.float64, device=device) + 0.5) * 2.0**-23
    assert (noise != (-torch.log(-torch.log(u))).float()).sum() < 5
