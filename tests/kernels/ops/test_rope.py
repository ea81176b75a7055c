from __future__ import annotations

import math

import numpy as np
import pytest

from slipstream_kernels.ops.rope import LinearScaling, Llama3Scaling, LongRopeScaling, Rope, YarnScaling, rotated_first


def test_the_table_is_the_same_in_parts_and_as_a_whole() -> None:
    frequencies = np.array([500000.0 ** (-2 * i / 64) for i in range(32)])
    angles = np.arange(9001, dtype=np.float64)[:, None] * frequencies
    whole = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert np.array_equal(Rope(500000.0).table(9001, 64).view(np.uint32), whole.view(np.uint32))


def test_llama3_scaling_keeps_high_and_divides_low_frequencies() -> None:
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)
    turn = 2 * math.pi / 64
    # Two pairs turn by 1 and by 1 / sqrt(theta).
    for turns, share in ((5.0, 1.0), (0.5, 0.0), (2.5, 0.5)):
        plain = turns * turn
        found = scaling.frequencies(plain**-2, 4)[1]
        assert found == pytest.approx((1 - share) * plain / 8 + share * plain)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones() -> None:
    """Beyond 32 turns in 4,096 positions a pair turns as before, below one turn a fourth."""
    found = YarnScaling(4.0, 1.1, 32.0, 1.0, 4096, truncate=True).frequencies(10000.0, 128)
    plain = Rope(10000.0).frequencies(128)
    turns = [4096 * frequency / (2 * math.pi) for frequency in plain]
    low = next(i for i, each in enumerate(turns) if each < 32) - 1
    high = next(i for i, each in enumerate(turns) if each < 1)
    assert found[:low] == plain[:low] and found[high:] == [each / 4 for each in plain[high:]]
    assert all(each / 4 < got < each for got, each in zip(found[low + 1 : high], plain[low + 1 : high], strict=True))


def test_factors_divide_pairs_and_attention_factors_multiply_what_turns() -> None:
    rope = Rope(1e4, LongRopeScaling((1.0, 2.0), 1.5))
    assert rope.frequencies(4) == [1.0, 0.01 / 2]
    assert Rope(1e4, LinearScaling(4.0)).frequencies(4) == [0.25, 0.01 / 4]
    table = rope.table(3, 4)
    assert np.allclose(table[2], [1.5 * math.cos(2), 1.5 * math.cos(0.01), 1.5 * math.sin(2), 1.5 * math.sin(0.01)])


def test_what_does_not_turn_stays_and_pairs_lie_half_a_head_apart() -> None:
    """Of a head of 8 the first 4 elements turn, in pairs two apart."""
    rope = Rope(1e4, rotated=4)
    assert rope.frequencies(8) == Rope(1e4).frequencies(4)
    table = rope.table(5, 8)
    assert np.all(table[:, 2:4] == 1) and np.all(table[:, 6:] == 0)
    assert np.array_equal(table[:, :2], Rope(1e4).table(5, 4)[:, :2])
    assert rotated_first(8, 4) == [0, 1, 4, 5, 2, 3, 6, 7]
    assert rotated_first(6, 2) == [0, 2, 3, 1, 4, 5]
