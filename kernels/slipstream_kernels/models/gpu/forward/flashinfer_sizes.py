"""Scratch memory that FlashInfer's plans want of their workspace where a pass is a CUDA graph.

A plan cuts queries into tiles and keeps a float32 partial state of every tile's row and query head. In a graph it
counts the tiles of the worst case that its numbers of rows and requests allow (`scheduler.cuh` of the library: the
functions `PrefillSplitQOKVIndptr`, `PrefillPlan` and `DecodePlan`, and `FA2DetermineCtaTileQ` of `utils.cuh`).
"""

from __future__ import annotations

from dataclasses import dataclass

_FLOAT = 4
_PROCESSORS = 256
"""Multiprocessors of a GPU, at most."""
_BLOCKS = 16
"""Thread blocks of a multiprocessor, at most, for kernels without tensor cores."""
_LEAST_BYTES = 128 << 20
"""What the library's documentation recommends."""


@dataclass(frozen=True, slots=True)
class PlainRows:
    """The largest passes without trees: rows of one that decodes, those of one with a prefill, and requests of each."""

    decode: int
    prefill: int
    requests: int


def float_bytes(rows: PlainRows, num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of the float workspace that the plans of all passes without trees fit into.

    Prefill by the kernels for Hopper takes none of it; those of other GPUs are counted everywhere.
    """
    group = num_heads // num_kv_heads
    decode = _tiled_states(rows.decode, rows.decode, group, num_kv_heads)
    prefill = _tiled_states(rows.prefill, min(rows.requests, rows.prefill), group, num_kv_heads)
    without_tensor_cores = _BLOCKS * _PROCESSORS // num_kv_heads
    states = num_heads * max(decode, prefill, without_tensor_cores)
    return max(_LEAST_BYTES, states * (head_dim + 1) * _FLOAT + 64)


def _tiled_states(rows: int, requests: int, group: int, num_kv_heads: int) -> int:
    """Rows of all tiles of a query head, of a graph for `rows` rows of `requests` requests; `group` heads share a row.

    Tiles hold 16, 64 or 128 rows times heads, by the longest request there can be.
    """
    longest = (rows - requests + 1) * group
    tile = 16 if longest <= 16 else 64 if longest <= 64 else 128
    tiles = max(2 * _PROCESSORS // num_kv_heads, -(-rows * group // tile) + requests - 1)
    return tiles * tile
