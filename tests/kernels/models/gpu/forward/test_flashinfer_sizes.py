from __future__ import annotations

import pytest

from slipstream_kernels.models.gpu.forward.flashinfer_sizes import PlainRows, float_bytes

LEAST = 128 << 20


def test_decoding_needs_what_the_library_asks_for() -> None:
    """FlashInfer 0.6.14 asked for 1,404,829,696 bytes for the values of 4,288 rows, heads 32/8 of 128."""
    found = float_bytes(PlainRows(4288, 64, 1), 32, 8, 128)
    assert found == 1_404_829_696 // 128 * 129 + 64


@pytest.mark.parametrize(
    ("prefill", "requests", "tiles"),
    [(2048 + 256, 256, 72 + 255), (2048 + 64, 64, 66 + 63), (8192 + 256, 256, 264 + 255), (2048, 1, 64)],
)
def test_a_prefill_counts_one_more_tile_for_each_request(prefill: int, requests: int, tiles: int) -> None:
    found = float_bytes(PlainRows(requests, prefill, requests), 32, 8, 128)
    assert found == max(LEAST, 32 * tiles * 128 * 129 * 4 + 64)


def test_one_kv_head_is_split_over_all_processors() -> None:
    assert float_bytes(PlainRows(64, 2112, 64), 8, 1, 128) == 8 * 512 * 128 * 129 * 4 + 64


def test_small_passes_get_the_least() -> None:
    assert float_bytes(PlainRows(4, 68, 4), 3, 1, 128) == LEAST
    assert float_bytes(PlainRows(256, 320, 256), 32, 8, 128) >= 32 * (64 + 255) * 16 * 129 * 4
