from __future__ import annotations

import pytest
import torch

from slipstream_kernels.device_start import begin_start, load_libraries, make_context


def test_a_cpu_has_nothing_to_start() -> None:
    assert begin_start("cpu") is None
    assert begin_start("auto") is None


def test_whoever_lacks_a_gpu_is_told_where_it_is_needed() -> None:
    thread = begin_start("cuda:0")
    assert thread is not None
    thread.join()
    with pytest.raises(OSError, match="no-such-driver"):
        make_context(0, "libno-such-driver.so.1")
    with pytest.raises(AttributeError):
        make_context(0, "libc.so.6")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has the libraries")
def test_a_torch_without_cuda_has_no_libraries_to_load() -> None:
    with pytest.raises(OSError, match="libtorch_cuda"):
        load_libraries()


@pytest.mark.gpu
def test_a_context_is_made_of_a_gpu_that_is_there() -> None:
    load_libraries()
    assert make_context(0)
    assert not make_context(torch.cuda.device_count())
