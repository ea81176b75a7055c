"""Within, an operation has the thread that calls it; then as before, whatever happened."""

import torch

from training.fit.threads import one_thread


def test_one_thread_for_a_while() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with one_thread():
            assert torch.get_num_threads() == 1
        try:
            with one_thread():
                raise KeyError
        except KeyError:
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
