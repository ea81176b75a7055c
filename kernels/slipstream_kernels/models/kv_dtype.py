"""How keys and values may be held, as an operator says it. Nothing here imports torch: `--help` needs none."""

from __future__ import annotations

from typing import Literal, get_args

KVDtype = Literal["auto", "bfloat16", "float32", "fp8", "fp8_e4m3"]
"""What an operator may ask for. What that means for a model: `slipstream_kernels.models.checkpoint.cache_scales`."""
KV_DTYPES: tuple[KVDtype, ...] = get_args(KVDtype)
