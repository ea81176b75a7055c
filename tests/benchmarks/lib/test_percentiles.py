from benchmarks.lib.percentiles import middle, spread


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
