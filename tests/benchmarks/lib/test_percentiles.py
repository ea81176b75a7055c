import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lib.percentiles import middle, percentile, spread


def test_percentiles_in_milliseconds():
    assert spread([0.001 * value for value in range(1000)]) == {
        "p50": 500,
        "p90": 900,
        "p99": 990,
        "p99.9": 999,
        "max": 999,
    }
    assert spread([]) == {}
    assert (middle([3.0, 1.0, 2.0]), middle([])) == (2.0, 0.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_a_percentile_is_numpys(values, part):
    assert percentile(values, part) == pytest.approx(float(np.quantile(values, part)), rel=1e-9, abs=1e-6)


def test_nothing_has_no_percentile():
    assert percentile([], 0.5) is None
