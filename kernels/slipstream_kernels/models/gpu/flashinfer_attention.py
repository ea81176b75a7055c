"""Attention of committed rows by FlashInfer (arXiv 2501.01005), an optional library, for fast mode.

Its splits follow the load, so a row's bits may depend on the rows beside it. Tree nodes are not served. FlashInfer
compiles its kernels when they are first planned, which needs nvcc and takes minutes; they are kept on disk.

A pass is planned on the host and enqueued on the current stream: `plan`, then, in the stream or a CUDA graph,
`gather` once and `run` once a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.ops.gpu.page_indices import page_indices

Int32 = npt.NDArray[np.int32]

_FLOAT_BYTES = 256 << 20
_INTEGER_BYTES = 8 << 20
_TYPES = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
_LARGEST_STRIDE = 2**32
_GROUPS_WITHOUT_TENSOR_CORES = (1, 2, 3)


class FlashInferError(RuntimeError):
    """FlashInfer is asked for and cannot be used."""


def load_flashinfer() -> Any:
    """The library. Raises FlashInferError."""
    try:
        import flashinfer
    except (ImportError, RuntimeError) as error:  # RuntimeError: parts of it of different versions, no CUDA toolkit
        raise FlashInferError(
            f"attention by FlashInfer needs the package flashinfer-python and CUDA's compiler ({error}); install "
            "'slipstream-server[gpu]', or choose --attention triton"
        ) from error
    return flashinfer


def use_flashinfer(attention: str, *, fast: bool) -> bool:
    """What `attention` (auto, triton or flashinfer) means. Raises FlashInferError."""
    if attention == "flashinfer" and not fast:
        raise FlashInferError("--attention flashinfer needs --mode fast: its rows depend on their company")
    if attention == "triton" or not fast:
        return False
    try:
        load_flashinfer()
    except FlashInferError:
        if attention == "flashinfer":
            raise
        return False
    return True


@dataclass(frozen=True, slots=True)
class PagedShape:
    """Heads of this rank, and pages of the KV cache."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    num_pages: int

    def paged(self, cache: torch.Tensor) -> torch.Tensor:
        """A layer's keys or values [kv_heads, slots, head_dim] as a view [pages, kv_heads, page_size, head_dim].

        Raises FlashInferError where the heads lie too far apart for FlashInfer's 32-bit strides.
        """
        if cache.stride(0) >= _LARGEST_STRIDE:
            raise FlashInferError(f"FlashInfer cannot address {cache.shape[1]} slots of a KV head; plan fewer pages")
        slots = cache[:, : self.num_pages * self.page_size]
        return slots.view(-1, self.num_pages, self.page_size, self.head_dim).transpose(0, 1)

    def spans(self, lengths: Int32) -> tuple[Int32, Int32]:
        """First page of each item when their pages lie end to end [items + 1], and positions in its last page [items].

        `lengths` [items]: positions read, at least 1.
        """
        starts = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(-(-lengths // self.page_size), out=starts[1:])
        return starts, (lengths - 1) % np.int32(self.page_size) + np.int32(1)


class FlashInferWorkspace:
    """Device memory that all plans share, since the passes of a stream run one after the other."""

    def __init__(self, page_table: torch.Tensor, max_rows: int) -> None:
        """`page_table`: int32 [lines, pages], on the device, read when passes run. `max_rows`: of one decode pass."""
        device = page_table.device
        self.page_table = page_table
        self.floats = torch.zeros(_FLOAT_BYTES, dtype=torch.uint8, device=device)
        self.integers = torch.zeros(_INTEGER_BYTES, dtype=torch.uint8, device=device)
        self.indices = torch.zeros(page_table.numel() + max_rows, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event()

    @staticmethod
    def num_bytes(page_table_entries: int, max_rows: int) -> int:
        """Device memory taken."""
        return _FLOAT_BYTES + _INTEGER_BYTES + 4 * (page_table_entries + max_rows)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Wait until the last plan has left the host's memory, which the next one overwrites.

        That is so as soon as the pass before the last planned one has ended.
        """
        self._copied.synchronize()
        try:
            yield
        except (RuntimeError, OSError) as error:
            raise FlashInferError(f"FlashInfer could not plan or compile its kernels: {error}") from error
        self._copied.record()


class DecodeAttention:
    """Attention of `rows` rows of one request each, for one CUDA graph of that many rows."""

    def __init__(
        self, shape: PagedShape, rows: int, workspace: FlashInferWorkspace, *, tensor_cores: bool | None = None
    ) -> None:
        """Tensor cores are used for groups of 4 heads and more, unless told. Raises FlashInferError."""
        self._library = load_flashinfer()
        self._shape = shape
        self._workspace = workspace
        self._spans = torch.zeros(2 * rows + 1, dtype=torch.int32, device=workspace.indices.device)
        self._starts, last = self._spans[: rows + 1], self._spans[rows + 1 :]
        group = shape.num_heads // shape.num_kv_heads
        self._wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
            workspace.floats,
            "HND",
            use_cuda_graph=True,
            use_tensor_cores=group not in _GROUPS_WITHOUT_TENSOR_CORES if tensor_cores is None else tensor_cores,
            paged_kv_indptr_buffer=self._starts,
            paged_kv_indices_buffer=workspace.indices,
            paged_kv_last_page_len_buffer=last,
        )
        self._wrapper.reset_workspace_buffer(workspace.floats, workspace.integers)
        with workspace.planning():  # binds the kernels, which it may compile
            self._wrapper.plan(*self._arguments(np.ones(rows, np.int32)), **_TYPES)

    def plan(self, lengths: Int32) -> None:
        """`lengths` [rows]: positions each row reads; 1 for padding. Raises FlashInferError."""
        with self._workspace.planning():
            starts, indices, last, *rest = self._arguments(lengths)
            self._spans.copy_(torch.cat((starts, last)).pin_memory(), non_blocking=True)
            self._library.decode.fast_decode_plan(self._wrapper, starts, indices, last, *rest, **_TYPES)

    def gather(self, lines: torch.Tensor) -> None:
        """Read the pages of the rows' lines: int32 [rows], -1 for padding."""
        page_indices(self._workspace.page_table, lines, self._starts, self._workspace.indices)

    def run(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
        """bfloat16 q and out [rows, heads, head_dim]; keys and values [kv_heads, slots, head_dim]."""
        self._wrapper.run(q, (self._shape.paged(keys), self._shape.paged(values)), out=out)

    def _arguments(self, lengths: Int32) -> tuple[Any, ...]:
        """Host tensors of the spans, an empty list of indices, since `gather` writes them, and the shape."""
        shape = self._shape
        starts, last = (torch.from_numpy(span) for span in shape.spans(lengths))
        unwritten = self._workspace.indices[:0]
        return starts, unwritten, last, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.page_size


class PrefillAttention:
    """Attention of consecutive rows of several requests, for passes outside of CUDA graphs."""

    def __init__(self, shape: PagedShape, workspace: FlashInferWorkspace) -> None:
        self._shape = shape
        self._workspace = workspace
        self._wrapper = load_flashinfer().BatchPrefillWithPagedKVCacheWrapper(workspace.floats, "HND")
        self._wrapper.reset_workspace_buffer(workspace.floats, workspace.integers)
        self._rows = 0
        self._lines = self._starts = workspace.indices[:0]

    def plan(self, rows: Int32, lines: Int32, lengths: Int32) -> None:
        """Requests in the order of their rows, which lie end to end from row 0 on; no line comes twice.

        All [requests]: number of rows, line of the page table, positions the last row reads. Raises FlashInferError.
        """
        shape, device = self._shape, self._workspace.indices.device
        starts, last = shape.spans(lengths)
        row_starts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(rows, out=row_starts[1:])
        self._rows = int(row_starts[-1])
        with self._workspace.planning():
            self._lines, self._starts = (_pinned(array).to(device, non_blocking=True) for array in (lines, starts))
            self._wrapper.plan(
                _pinned(row_starts),
                _pinned(starts),
                self._workspace.indices[: starts[-1]],
                _pinned(last),
                shape.num_heads,
                shape.num_kv_heads,
                shape.head_dim,
                shape.page_size,
                causal=True,
                max_token_per_sequence=int(rows.max()),
                **_TYPES,
            )

    def gather(self) -> None:
        """Read the pages of the planned lines."""
        page_indices(self._workspace.page_table, self._lines, self._starts, self._workspace.indices)

    def run(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
        """bfloat16 q and out [rows, heads, head_dim], whose rows beyond the planned ones are left alone."""
        cache = (self._shape.paged(keys), self._shape.paged(values))
        self._wrapper.run(q[: self._rows], cache, out=out[: self._rows])


def _pinned(array: Int32) -> torch.Tensor:
    return torch.from_numpy(array).pin_memory()
