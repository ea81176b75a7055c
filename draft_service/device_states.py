"""Hidden states that verify has left in a ring of its GPU's memory, copied to where proposers compute."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from draft_service.codec import DeviceRingAddress
from draft_service.records import Commit, DeviceRows, Extend, Record
from slipstream.rpc.errors import UnavailableError
from slipstream_kernels.exchange.byte_ring import NONCE_BYTES
from slipstream_kernels.exchange.device_memory import DATA_OFFSET, DeviceBlock, DeviceMemory, DeviceMemoryError

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

NUMBER_BYTES = 2
"""Of bfloat16."""


class DeviceStates:
    """The drafter's end of a device ring. Belongs to whoever makes a pass of the worker's."""

    def __init__(self, block: DeviceBlock, device: str, nonce: bytes = b"") -> None:
        """The block has the ring, known by the nonce; rows are copied to `device`."""
        self._block = block
        self.nonce = nonce
        self._capacity = block.size - DATA_OFFSET
        self._device = device
        self._copied: deque[tuple[int, torch.cuda.Event | None]] = deque()
        self._released = 0
        self._messages = 0
        self._numbers = block.numbers()

    @classmethod
    def open(cls, address: DeviceRingAddress, memory: DeviceMemory, device: str) -> Self:
        """Open the ring of another process. DeviceMemoryError if that cannot be."""
        block = memory.open(address.handle, address.size, address.gpu_uuid)
        return cls(block, device, block.read_nonce(NONCE_BYTES))

    @property
    def released(self) -> int:
        """How many messages were taken in whose states have been copied, and those of all before them."""
        while self._copied and (self._copied[0][1] is None or self._copied[0][1].query()):
            self._released = self._copied.popleft()[0]
        if not self._copied:
            self._released = self._messages
        return self._released

    def resolve(self, records: Sequence[Record]) -> list[Record]:
        """The records of the next message with states of their own, copied by as few copies as they lie in.

        UnavailableError for rows that cannot be.
        """
        self._messages += 1
        rows = [record.device_rows for record in records if isinstance(record, Commit | Extend) and record.device_rows]
        if not rows:
            return list(records)
        runs = self._runs(rows)
        copies = [(start, self._copy(start, end)) for start, end in runs]
        self._copied.append((self._messages, self._event()))
        return [self._with_states(record, copies) for record in records]

    def close(self) -> None:
        """Unmap the ring, once it is not read any more."""
        self._copied.clear()
        del self._numbers
        try:
            self._block.close()
        except DeviceMemoryError as error:
            _log.warning("verify's memory is still mapped: %s", error)

    def _runs(self, rows: Sequence[DeviceRows]) -> list[tuple[int, int]]:
        """Positions from the first to behind the last of rows that lie in one piece, ascending."""
        runs: list[tuple[int, int]] = []
        for each in sorted(rows):
            start, end = each.position, each.position + each.rows * each.row_bytes
            place = start % self._capacity
            odd = (each.row_bytes | start) % NUMBER_BYTES
            if odd or end <= start or place + end - start > self._capacity or (runs and start < runs[-1][1]):
                raise UnavailableError(f"{each.rows} rows of {each.row_bytes} bytes at {start} of the device's ring")
            if runs and start // self._capacity == runs[-1][0] // self._capacity:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((start, end))
        return runs

    def _copy(self, start: int, end: int) -> torch.Tensor:
        import torch

        place = start % self._capacity // NUMBER_BYTES
        source = self._numbers[place : place + (end - start) // NUMBER_BYTES]
        target = torch.empty(len(source), dtype=source.dtype, device=self._device)
        return target.copy_(source, non_blocking=True)

    def _event(self) -> torch.cuda.Event | None:
        """Comes when the copies queued so far are made; None where they are."""
        import torch

        if not self._numbers.is_cuda:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._numbers.device))
        return event

    @staticmethod
    def _with_states(record: Record, copies: Sequence[tuple[int, torch.Tensor]]) -> Record:
        if not isinstance(record, Commit | Extend) or record.device_rows is None:
            return record
        position, rows, row_bytes = record.device_rows
        start, copy = next((start, copy) for start, copy in reversed(copies) if start <= position)
        first, width = (position - start) // NUMBER_BYTES, row_bytes // NUMBER_BYTES
        features = copy.as_strided((rows, width), (width, 1), first)
        if isinstance(record, Extend):
            return Extend(record.stamp, record.first_position, features)
        stamp, tokens, nodes, depth = record.stamp, record.token_ids, record.max_nodes, record.max_depth
        return Commit(stamp, tokens, nodes, depth, features, record.tree_id)
