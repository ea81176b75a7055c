"""The pieces run the services' own code, and their spans arrive."""

from benchmarks.trace_cost.pieces import measure


def test_every_piece_costs_something(tiny_model):
    found = measure(tiny_model, 3)
    assert len(found) == 6
    for name, values in found.items():
        assert len(values) == 3
        assert max(values) > 0, name
