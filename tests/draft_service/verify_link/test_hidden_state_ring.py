"""Rows in a ring of the device's memory: what they are copied by, when they are released, and what cannot be."""

from __future__ import annotations

import pytest
import torch

from draft_service.proposers.hidden_states import placed
from draft_service.protocol.records import Close
from draft_service.verify_link.hidden_state_ring import HiddenStateRing
from slipstream.rpc.errors import UnavailableError
from slipstream_kernels.draft_protocol.records import Commit, DeviceRingAddress, DeviceRows, Extend, Stamp
from slipstream_kernels.ipc.device_memory import DATA_OFFSET
from support.host_device_memory import GPU_UUID, HostBlock, HostMemory
from tests.draft_service.worker.test_states import Taker

STAMP = Stamp(1, 0, 1, 5, 7)
CAPACITY = 1024


@pytest.fixture
def block() -> HostBlock:
    """Number i is i modulo 256."""
    block = HostMemory().allocate(DATA_OFFSET + CAPACITY)
    block.write_nonce(b"n" * 16)
    block.numbers().copy_(torch.arange(CAPACITY // 2) % 256)
    return block


@pytest.fixture
def states(block: HostBlock) -> HiddenStateRing:
    return HiddenStateRing.open(DeviceRingAddress(block.handle, block.size, GPU_UUID), HostMemory(), "cpu")


def commit(position: int, rows: int, row_bytes: int) -> Commit:
    return Commit(STAMP, [1] * rows, 1, 0, None, DeviceRows(position, rows, row_bytes))


def test_rows_of_a_message_are_copied_together_and_lie_where_they_are_said_to(
    states: HiddenStateRing, block: HostBlock
) -> None:
    extend = Extend(STAMP, 0, None, DeviceRows(CAPACITY, 1, 16))
    records = states.resolve([extend, commit(512, 1, 64), Close(STAMP), commit(256, 2, 32)])
    block.numbers().zero_()
    third, second, close, first = records
    assert isinstance(first, Commit) and isinstance(second, Commit) and isinstance(third, Extend)
    assert first.hidden_states is not None and second.hidden_states is not None and third.hidden_states is not None
    assert close == Close(STAMP)
    assert torch.equal(first.hidden_states, torch.arange(128, 160).view(2, 16).bfloat16())
    assert torch.equal(second.hidden_states, (torch.arange(256, 288) % 256).view(1, 32).bfloat16())
    assert torch.equal(third.hidden_states, torch.arange(8).view(1, 8).bfloat16())
    assert first.hidden_states.untyped_storage().data_ptr() == second.hidden_states.untyped_storage().data_ptr()
    assert states.released == 1
    states.resolve([Close(STAMP)])
    assert states.released == 2


@pytest.mark.parametrize(
    "rows",
    [DeviceRows(0, 0, 32), DeviceRows(1, 1, 32), DeviceRows(0, 1, 33), DeviceRows(CAPACITY - 32, 2, 32)],
)
def test_rows_that_cannot_be_end_the_exchange(states: HiddenStateRing, rows: DeviceRows) -> None:
    with pytest.raises(UnavailableError, match="of the device's ring"):
        states.resolve([Extend(STAMP, 0, None, rows)])


def test_rows_of_two_records_do_not_overlap(states: HiddenStateRing) -> None:
    with pytest.raises(UnavailableError):
        states.resolve([commit(256, 2, 32), commit(288, 1, 32)])


class OnGpu:
    """As much of a tensor on a GPU as is looked at."""

    is_cuda = True

    def cpu(self) -> str:
        return "on the CPU"


def test_a_proposer_that_knows_no_gpu_takes_states_on_the_cpu() -> None:
    taker, given = Taker(), OnGpu()
    assert placed(given, taker) == "on the CPU"  # type: ignore[arg-type, comparison-overlap] # no GPU for a tensor
    taker.state_device = "cuda:0"
    assert placed(given, taker) is given  # type: ignore[arg-type, comparison-overlap]
