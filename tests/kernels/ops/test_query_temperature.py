from __future__ import annotations

import math

import numpy as np

from slipstream_kernels.ops.query_temperature import QueryTemperature


def test_factors_grow_in_steps() -> None:
    table = QueryTemperature(8, 0.1).table(24)
    assert table.dtype == np.float32
    assert (table[:7] == 1).all()
    assert (table[7:15] == np.float32(1 + 0.1 * math.log(2))).all()
    assert table[15] == np.float32(1 + 0.1 * math.log(3)) and table[23] == np.float32(1 + 0.1 * math.log(4))
