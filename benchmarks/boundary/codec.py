"""What one round's records take to encode and to decode, on this processor and with nothing else going on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.boundary.settings import Measured
from draft_service.protocol import codec
from slipstream_kernels.draft_protocol.records import Commit, Stamp, TreeReply
from slipstream_kernels.token_tree import TokenTree
from verify_service.draft_link.codec import decode_replies, encode_commands

REPEATS = 300


def codec_figures(measured: Measured) -> dict[str, dict[str, float]]:
    """Microseconds of each function, for a commit with and without states in the message, and for its tree."""
    setting = max(measured.settings, key=lambda each: each.rows)
    columns = 3 * measured.shape.hidden_size
    return {
        "states in the message": _figures(setting.rows, setting.right + 1, columns),
        "no states in it": _figures(setting.rows, setting.right + 1, 0),
    }


def _figures(rows: int, tokens: int, columns: int) -> dict[str, float]:
    stamp = Stamp(1 << 40, 0, 1, 1000, 10)
    states = np.zeros((tokens, columns), np.uint16) if columns else None
    commit = Commit(stamp, tuple(range(100, 100 + tokens)), rows, rows - 1, states)
    tree = TokenTree.chain(range(1000, 1000 + rows - 1))
    reply = TreeReply(Stamp(*stamp), tree)
    command, answer = encode_commands([commit]), codec.encode_replies([reply]).SerializeToString()
    return {
        "encode a commit us": _median(lambda: encode_commands([commit])),
        "decode a commit us": _median(lambda: codec.decode_command_bytes(command)),
        "encode a tree us": _median(lambda: codec.encode_replies([reply]).SerializeToString()),
        "decode a tree us": _median(lambda: decode_replies(answer, 1)),
        "commit bytes": len(command),
        "tree bytes": len(answer),
    }


def _median(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(seconds)
