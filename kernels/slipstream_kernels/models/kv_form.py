"""How a model's keys and values are held."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.ops.kv_cache.kv_codes import LARGEST_SCALE, LEAST_SCALE

SCALE_BYTES = 4
"""Of a row's scale, beside a byte an element."""


@dataclass(frozen=True, slots=True)
class KVForm:
    """In the data type that the device's kernels have, or, `fp8`, as codes of 8 bits; see `ops.kv_cache.kv_codes`.

    scales: of each layer those that keys and values are written with, numbers of float32; empty: each row's own.
    """

    fp8: bool = False
    scales: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        for layer, pair in enumerate(self.scales):
            for name, scale in zip(("k_scale", "v_scale"), pair, strict=True):
                if not LEAST_SCALE <= scale <= LARGEST_SCALE:
                    raise ValueError(
                        f"{name} of layer {layer} is {scale}, must be from {LEAST_SCALE:g} to {LARGEST_SCALE:g}"
                    )

    def name(self, own: str) -> str:
        """What operators call it, `own` being the data type of the device's kernels."""
        return "fp8_e4m3" if self.fp8 else own

    def row_bytes(self, head_dim: int, element_bytes: int) -> int:
        """Bytes of one head's key, or value, of one token; `element_bytes` where it is not held as codes."""
        return head_dim + SCALE_BYTES if self.fp8 else head_dim * element_bytes


FLOAT = KVForm()
