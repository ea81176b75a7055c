"""What the device keeps of running requests from pass to pass: pages, sampling parameters, last tokens, counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.ops.gpu.sampling_table import (
    ENDS_OUTPUT,
    FIELDS,
    FLAGS,
    HAS_BIAS,
    HAS_MIN_TOKENS,
    HAS_PENALTIES,
    IN_PROMPT,
    SamplingTensors,
    pack_line,
)

_NO_CHANGES = np.zeros((0, 2), np.int32)


class RequestTables:
    """One line a running request.

    Parameters and page table lie in one block of `words`, of which the host keeps a copy. Changes are noted and go out
    with the next pass as (index, word) pairs; the word is read from the copy then, so that an index noted twice comes
    with equal words. The tables of one entry a token are uploaded by line, and only where its flags say they are read.
    """

    def __init__(self, limits: GpuLimits, vocab_size: int, device: torch.device | str) -> None:
        lines, pages = limits.max_running, limits.context_pages
        self._pages = pages
        self._first_page_word = lines * FIELDS
        self._first_adapter_word = self._first_page_word + lines * pages
        if self._first_adapter_word + lines >= 2**31:
            raise ValueError(f"max_running {lines} times {pages} pages are too many for a page table")
        self._copy = np.full(self._first_adapter_word + lines, -1, np.int32)
        self._copy[self._first_page_word : self._first_adapter_word] = 0
        self._copy[: self._first_page_word] = np.tile(pack_line(), lines)
        self._changed: list[range] = []
        self.words = torch.from_numpy(self._copy).to(device, copy=True)
        self.page_table = self.words[self._first_page_word : self._first_adapter_word].view(lines, pages)
        """int32 [lines, pages]"""
        self.adapters = self.words[self._first_adapter_word :]
        """int32 [lines], slot of each line's adapter, below 0 where it has none"""
        self.last_tokens = torch.zeros(lines, dtype=torch.int32, device=device)
        self.sampling = SamplingTensors(
            params=self.words[: self._first_page_word].view(lines, FIELDS),
            token_flags=torch.zeros(lines, vocab_size, dtype=torch.uint8, device=device),
            output_counts=torch.zeros(lines, vocab_size, dtype=torch.int32, device=device),
            bias=torch.zeros(lines, vocab_size, dtype=torch.float32, device=device),
        )

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        tables = (self.sampling.token_flags, self.sampling.output_counts, self.sampling.bias, self.last_tokens)
        return self.words.nbytes + sum(table.nbytes for table in tables)

    def set_line(
        self,
        line: int,
        packed_params: Int32,
        *,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] | None = None,
        bias: Sequence[tuple[int, float]] | None = None,
        end_ids: Sequence[int] | None = None,
    ) -> None:
        """See `GpuModel.set_line`."""
        first = line * FIELDS
        self._copy[first : first + FIELDS] = packed_params
        self._changed.append(range(first, first + FIELDS))
        tables, vocab_size = self.sampling, self.sampling.bias.shape[1]
        flags = int(packed_params[FLAGS])
        if flags & (HAS_PENALTIES | HAS_MIN_TOKENS):
            marks = np.zeros(vocab_size, np.uint8)
            marks[_ids(prompt_ids)] |= IN_PROMPT
            marks[_ids(end_ids)] |= ENDS_OUTPUT
            _upload(tables.token_flags[line], marks)
        if flags & HAS_PENALTIES:
            counts = np.bincount(_ids(output_ids), minlength=vocab_size).astype(np.int32)
            _upload(tables.output_counts[line], counts)
        if flags & HAS_BIAS:
            values = np.zeros(vocab_size, np.float32)
            for token, value in bias or ():
                values[token] = value
            _upload(tables.bias[line], values)

    def set_adapter(self, line: int, slot: int) -> None:
        """The adapter of a line, from the next pass on; below 0: none."""
        place = self._first_adapter_word + line
        if self._copy[place] != slot:
            self._copy[place] = slot
            self._changed.append(range(place, place + 1))

    def has_adapters(self, lines: Int32) -> bool:
        """Whether any of these lines has one."""
        return bool((self._copy[self._first_adapter_word + lines] >= 0).any())

    def set_pages(self, line: int, start: int, pages: Int32 | Sequence[int]) -> None:
        """See `GpuModel.set_pages`."""
        if not 0 <= start <= start + len(pages) <= self._pages:
            raise ValueError(f"pages {start} to {start + len(pages)} of a line, which has {self._pages}")
        first = self._first_page_word + line * self._pages + start
        self._copy[first : first + len(pages)] = pages
        self._changed.append(range(first, first + len(pages)))

    def take_changes(self, most: int) -> Int32:
        """Words of indices noted since the last call, int32 [n, 2]. More than `most` are uploaded at once instead."""
        if not self._changed:
            return _NO_CHANGES
        count = sum(map(len, self._changed))
        if count > most:
            self._upload_changes()
            return _NO_CHANGES
        updates = np.empty((count, 2), np.int32)
        updates[:, 0] = indices = np.fromiter(chain.from_iterable(self._changed), np.int32, count)
        updates[:, 1] = self._copy[indices]
        self._changed.clear()
        return updates

    def _upload_changes(self) -> None:
        for words in self._changed:
            if words:
                _upload(self.words[words.start : words.stop], self._copy[words.start : words.stop])
        self._changed.clear()


def _ids(ids: Sequence[int] | None) -> npt.NDArray[np.int64]:
    return np.asarray(() if ids is None else ids, np.int64)


def _upload(target: torch.Tensor, values: npt.NDArray[np.generic]) -> None:
    """Copy in the order of the stream, without waiting for it."""
    source = torch.from_numpy(values)
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)
