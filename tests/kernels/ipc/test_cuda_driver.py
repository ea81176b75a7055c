"""Which GPUs there are, by their UUIDs."""

from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ipc.cuda_driver import gpu_uuids, is_mps_client


@pytest.mark.parametrize("driver", ["libno-such-driver.so.1", "libc.so.6"])
def test_without_a_driver_there_are_none(driver: str) -> None:
    assert gpu_uuids(driver) == ()
    assert not is_mps_client(0, driver)


def test_they_are_those_of_torch_in_its_order() -> None:
    known = (torch.cuda.get_device_properties(index).uuid for index in range(torch.cuda.device_count()))
    assert gpu_uuids() == tuple(f"GPU-{uuid}" for uuid in known)


def test_no_gpu_beyond_the_last_one_is_shared() -> None:
    assert not is_mps_client(torch.cuda.device_count())
