from __future__ import annotations

from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Form


def test_bytes_are_known_beforehand() -> None:
    form = Fp8Form(48, 32)
    weight = form.empty("cpu")
    assert weight.nbytes == form.nbytes == 48 * 36
    assert (weight.shape, len(weight)) == ((48, 32), 48)
