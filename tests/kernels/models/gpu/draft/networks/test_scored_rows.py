import pytest
import torch

from slipstream_kernels.models.gpu.draft.networks.scored_rows import limited_rows

ROWS = torch.arange(8.0).view(4, 2)


@pytest.mark.parametrize("size", [3, 4, 9])
def test_without_a_map_the_first_rows_are_kept(size):
    (rows, same), ids = limited_rows([ROWS, ROWS], None, size)
    assert ids is None and rows.is_contiguous()
    assert torch.equal(rows, ROWS[:size]) and rows.data_ptr() == same.data_ptr() == ROWS.data_ptr()


def test_with_a_map_those_are_kept_whose_ids_the_target_has():
    other = ROWS + 1
    (rows, same, others), ids = limited_rows([ROWS, ROWS, other], torch.tensor([0, 7, 3, 9]), 8)
    assert ids.tolist() == [0, 7, 3]
    assert rows.is_contiguous() and rows is same
    assert torch.equal(rows, ROWS[:3]) and torch.equal(others, other[:3])


def test_a_map_that_fits_stays():
    ids = torch.tensor([0, 7, 3, 2])
    (rows,), kept = limited_rows([ROWS], ids, 8)
    assert rows is ROWS and kept is ids
