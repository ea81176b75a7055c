from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from slipstream_kernels.ops.philox import gumbel, gumbel_reference, philox_reference

NOISE_PAGE = Path(__file__).parents[3] / "docs" / "protocol" / "noise.md"

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [
    # counter, key, output: the known-answer vectors of the generator's authors
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_reference_gives_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], output: tuple[int, ...]
) -> None:
    assert tuple(philox_reference(np.array(counter, np.uint32), np.array(key, np.uint32))) == output


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**64 - 1, 0x0123456789ABCDEF])
@pytest.mark.parametrize(("choice", "position"), [(0, 0), (3, 4095), (2**32 - 1, 2**31 - 1)])
def test_kernel_equals_the_reference_bit_for_bit(seed: int, choice: int, position: int) -> None:
    ids = np.concatenate([np.arange(1000), [2**31 - 1, 128_255]])
    noise = gumbel(seed, choice, position, ids)
    assert noise.dtype == np.float32
    assert np.array_equal(noise, gumbel_reference(seed, choice, position, ids))


def test_noise_does_not_depend_on_its_place_in_the_call() -> None:
    whole = gumbel(7, 1, 100, np.arange(300))
    assert all(gumbel(7, 1, 100, np.array([i]))[0] == whole[i] for i in range(300))
    assert np.array_equal(gumbel(7, 1, 100, np.arange(13, 290)), whole[13:290])
    assert np.array_equal(gumbel(7, 1, 100, np.arange(300).reshape(3, 100)), whole.reshape(3, 100))


def test_every_coordinate_matters() -> None:
    ids = np.arange(64)
    variants = [gumbel(*words, ids) for words in ((1, 0, 5), (2, 0, 5), (1 + 2**32, 0, 5), (1, 1, 5), (1, 0, 6))]
    assert len({noise.tobytes() for noise in variants}) == len(variants)


def test_is_gumbel_distributed_and_finite() -> None:
    noise = np.concatenate([gumbel(11, 0, position, np.arange(1000)) for position in range(100)])
    assert np.isfinite(noise).all()
    expected = np.exp(-np.exp(-np.sort(noise.astype(np.float64))))
    distance = np.abs(expected - (np.arange(len(noise)) + 0.5) / len(noise)).max()
    assert distance < 1.95 / np.sqrt(len(noise))  # Kolmogorov and Smirnov, one in a thousand


def test_published_vectors() -> None:
    """Every row of the table in the documentation: seed, choice, position, index, bits, u, g."""
    columns = [r"(0x\w+)", r"(\d+)", r"(\d+)", r"(\d+)", r"(0x\w+)", r"(\S+)", r"(\S+)"]
    rows = re.findall(r"^\| " + r" \| ".join(columns) + r" \|$", NOISE_PAGE.read_text(), re.MULTILINE)
    assert len(rows) >= 8
    for seed, choice, position, index, bits, u, g in rows:
        key = np.array([int(seed, 16) & ONES, int(seed, 16) >> 32], np.uint32)
        counter = np.array([int(index), int(position), int(choice), 0], np.uint32)
        word = int(philox_reference(counter, key)[0])
        assert word == int(bits, 16)
        assert ((word >> 9) + 0.5) * 2.0**-23 == float(u)
        assert gumbel(int(seed, 16), int(choice), int(position), [int(index)])[0] == np.float32(g)
