import numpy as np

from slipstream_kernels.jit.row_copies import copy_rows


def test_rows_go_to_their_places_in_order():
    source = np.arange(20, dtype=np.uint16).reshape(5, 4)
    target = np.full((6, 4), 99, np.uint16)
    copy_rows(source, np.array([4, 0, 2]), target, np.array([1, 5, 1]))
    expected = np.full((6, 4), 99, np.uint16)
    expected[5], expected[1] = source[0], source[2]
    assert np.array_equal(target, expected)
