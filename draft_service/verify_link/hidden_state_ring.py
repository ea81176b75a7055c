"""Hidden states that verify has left in a ring of its GPU's memory, copied to where proposers compute."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Self

from draft_service.proposers.base import CPU
from draft_service.protocol.records import Record
from slipstream.rpc.errors import UnavailableError
from slipstream_kernels.draft_protocol.records import Commit, DeviceRingAddress, DeviceRows, Extend
from slipstream_kernels.ipc.byte_ring import NONCE_BYTES
from slipstream_kernels.ipc.device_memory import DATA_OFFSET, DeviceBlock, DeviceMemory, DeviceMemoryError

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

NUMBER_BYTES = 2
"""Of bfloat16."""
_place_in_ring = itemgetter(0)


class HiddenStateRing:
    """The drafter's end of a device ring. Belongs to whoever makes a pass of the worker's."""

    def __init__(self, block: DeviceBlock, device: str, nonce: bytes = b"") -> None:
        """The block has the ring, known by the nonce; rows are copied to `device`, be it the block's or another.

        A copy is queued on the current stream of the block's device. It is ready for what is queued afterwards on the
        current stream of `device`: torch has that one wait for it where the two differ.
        """
        self._block = block
        self.nonce = nonce
        self._capacity = block.size - DATA_OFFSET
        self._device = device
        self._copied: deque[tuple[int, torch.cuda.Event]] = deque()
        self._spare: list[torch.cuda.Event] = []
        self._stream: torch.cuda.Stream | None = None
        """on which copies were queued that no event follows yet"""
        self._released = 0
        self._messages = 0
        self._numbers = block.numbers()

    @classmethod
    def open(cls, address: DeviceRingAddress, memory: DeviceMemory, device: str) -> Self:
        """Open the ring of another process. DeviceMemoryError if that cannot be."""
        block = memory.open(address.handle, address.size, address.gpu_uuid)
        return cls(block, device, block.read_nonce(NONCE_BYTES))

    @property
    def numbers(self) -> torch.Tensor:
        """All that the ring holds, bfloat16 [any], where it is."""
        return self._numbers

    @property
    def released(self) -> int:
        """How many messages were taken in whose states have been copied, and those of all before them.

        Takes some microseconds, which are better spent once trees are on their way.
        """
        self._follow()
        while self._copied and self._copied[0][1].query():
            self._released, event = self._copied.popleft()
            self._spare.append(event)
        if not self._copied:
            self._released = self._messages
        return self._released

    def resolve(self, records: Sequence[Record]) -> list[Record]:
        """The records of the next message with states of their own, copied by as few copies as they lie in.

        UnavailableError for rows that cannot be.
        """
        rows = [record.device_rows for record in records if isinstance(record, Commit | Extend) and record.device_rows]
        if not rows:
            self._messages += 1
            return list(records)
        runs = self._runs(rows)
        stream = self._present_stream()
        if stream is not None and self._stream is not None and stream.cuda_stream != self._stream.cuda_stream:
            self._follow()
        self._messages += 1
        self._stream = stream
        copies = [(start, self._copy(start, end)) for start, end in runs]
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
        capacity, first, last = self._capacity, -1, -1
        for start, count, row_bytes, *_ in sorted(rows, key=_place_in_ring):
            end = start + count * row_bytes
            odd = (row_bytes | start) % NUMBER_BYTES
            if odd or end <= start or start % capacity + end - start > capacity or start < last:
                raise UnavailableError(f"{count} rows of {row_bytes} bytes at {start} of the device's ring")
            if first < 0 or start // capacity != first // capacity:
                if first >= 0:
                    runs.append((first, last))
                first = start
            last = end
        runs.append((first, last))
        return runs

    def _copy(self, start: int, end: int) -> torch.Tensor:
        place = start % self._capacity // NUMBER_BYTES
        source = self._numbers[place : place + (end - start) // NUMBER_BYTES]
        return source.to(self._device, non_blocking=self._device != CPU, copy=True)

    def _present_stream(self) -> torch.cuda.Stream | None:
        """On which copies are queued; None where they are made at once."""
        import torch

        return torch.cuda.current_stream(self._numbers.device) if self._numbers.is_cuda else None

    def _follow(self) -> None:
        """Have an event come once the copies queued so far are made."""
        import torch

        if self._stream is not None:
            event = self._spare.pop() if self._spare else torch.cuda.Event()
            event.record(self._stream)
            self._copied.append((self._messages, event))
            self._stream = None

    @staticmethod
    def _with_states(record: Record, copies: Sequence[tuple[int, torch.Tensor]]) -> Record:
        if not isinstance(record, Commit | Extend) or record.device_rows is None:
            return record
        position, rows, row_bytes, *_ = record.device_rows
        at = len(copies) - 1
        while copies[at][0] > position:
            at -= 1
        start, copy = copies[at]
        width = row_bytes // NUMBER_BYTES
        features = copy.as_strided((rows, width), (width, 1), (position - start) // NUMBER_BYTES)
        if isinstance(record, Extend):
            return Extend(record.stamp, record.first_position, features)
        stamp, tokens, nodes, depth, _, _, handed = record
        return Commit(stamp, tokens, nodes, depth, features, handed=handed)
