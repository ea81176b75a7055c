"""Attention of committed rows by FlashInfer (arXiv 2501.01005), an optional library, for fast mode.

Its splits follow the load, so a row's bits may depend on the rows beside it. Tree nodes are not served. FlashInfer
compiles its kernels when they are first planned, which needs nvcc and takes minutes; they are kept on disk.

An attention object belongs to one CUDA graph: `prepare` comes before its capture, which holds `gather` once and `run`
once a layer; `plan` comes before each replay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.cache_folders import settle_flashinfer_cache
from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.gpu.page_indices import page_indices

Int32 = npt.NDArray[np.int32]

AUTO, TRITON, FLASHINFER = "auto", "triton", "flashinfer"
"""Choices of attention: the last one for passes without trees, the first the last one where it can be had."""
_INTEGER_BYTES = 8 << 20
_TYPES = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
_LARGEST_STRIDE = 2**32
_GROUPS_WITHOUT_TENSOR_CORES = (1, 2, 3)


class FlashInferError(RuntimeError):
    """FlashInfer is asked for and cannot be used."""


def load_flashinfer() -> Any:
    """The library. Raises FlashInferError."""
    settle_flashinfer_cache()
    try:
        import flashinfer
    except (ImportError, OSError, RuntimeError) as error:  # parts of different versions, no CUDA toolkit, no folder
        raise FlashInferError(
            f"attention by FlashInfer needs the package flashinfer-python and CUDA's compiler ({error}); install "
            "'slipstream-server[gpu]', or choose --attention triton"
        ) from error
    return flashinfer


def settled_attention(
    attention: str, *, mode: str, forms: Collection[AttentionForm] = (FULL,), fp8: bool = False
) -> str:
    """What `attention` (auto, triton or flashinfer) means in a mode: triton or flashinfer. Raises FlashInferError.

    forms: what the model's layers compute. fp8: keys and values are held in 8 bits.
    """
    if attention == FLASHINFER and mode != "fast":
        raise FlashInferError("--attention flashinfer needs --mode fast: its rows depend on their company")
    full = all(form == FULL for form in forms)
    if attention == FLASHINFER and not full:
        raise FlashInferError("--attention flashinfer is for models without windows, chunks, scales, bounds and sinks")
    if attention == FLASHINFER and fp8:
        raise FlashInferError("--attention flashinfer reads no KV cache in FP8: take --attention triton")
    if attention == TRITON or mode != "fast" or not full or fp8:
        return TRITON
    try:
        load_flashinfer()
    except FlashInferError:
        if attention == FLASHINFER:
            raise
        return TRITON
    return FLASHINFER


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

        `lengths` [items]: positions read; 0 has no page.
        """
        starts = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(-(-lengths // self.page_size), out=starts[1:])
        before = np.maximum(np.diff(starts) - 1, 0) * self.page_size
        return starts, (lengths - before).astype(np.int32)


class FlashInferWorkspace:
    """Device memory that all plans share, since the passes of a stream run one after the other."""

    def __init__(self, page_table: torch.Tensor, max_rows: int, float_bytes: int) -> None:
        """`page_table`: int32 [lines, pages], on the device, read when passes run. `max_rows`: of one pass.

        `float_bytes`: as `flashinfer_sizes` says, of all plans that share the workspace.
        """
        device = page_table.device
        self.page_table = page_table
        self.floats = torch.zeros(float_bytes, dtype=torch.uint8, device=device)
        self.integers = torch.zeros(_INTEGER_BYTES, dtype=torch.uint8, device=device)
        self.indices = torch.zeros(page_table.numel() + max_rows, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event()

    @staticmethod
    def num_bytes(page_table_entries: int, max_rows: int, float_bytes: int) -> int:
        """Device memory taken."""
        return float_bytes + _INTEGER_BYTES + 4 * (page_table_entries + max_rows)

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


class _Items:
    """Where the rows and pages of a pass's requests lie: int32 arrays on the device, filled by one copy."""

    def __init__(self, items: int, workspace: FlashInferWorkspace) -> None:
        self._block = torch.zeros(4 * items + 2, dtype=torch.int32, device=workspace.indices.device)
        self._sizes = [items + 1, items + 1, items, items]
        self.row_starts, self.starts, self.last, self._lines = self._block.split(self._sizes)
        self._workspace = workspace

    def fill(self, row_starts: Int32, starts: Int32, last: Int32, lines: Int32) -> tuple[torch.Tensor, ...]:
        """Copy to the device, in stream order; returns the first three as pinned host tensors.

        `lines` may be shorter: items beyond have no page of their own.
        """
        host = torch.zeros(len(self._block), dtype=torch.int32, pin_memory=True)
        parts = host.split(self._sizes)
        for part, array in zip(parts, (row_starts, starts, last, lines), strict=True):
            part[: len(array)] = torch.from_numpy(array)
        self._block.copy_(host, non_blocking=True)
        return tuple(parts[:3])

    def gather(self) -> None:
        page_indices(self._workspace.page_table, self._lines, self.starts, self._workspace.indices)


class DecodeAttention:
    """Attention of up to `rows` rows, each of another request."""

    def __init__(
        self, shape: PagedShape, rows: int, workspace: FlashInferWorkspace, *, tensor_cores: bool | None = None
    ) -> None:
        """Tensor cores are used for groups of 4 heads and more, unless told. Raises FlashInferError."""
        self._library = load_flashinfer()
        self._shape = shape
        self._rows = rows
        self._workspace = workspace
        self._items = _Items(rows, workspace)
        group = shape.num_heads // shape.num_kv_heads
        self._wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
            workspace.floats,
            "HND",
            use_cuda_graph=True,
            use_tensor_cores=group not in _GROUPS_WITHOUT_TENSOR_CORES if tensor_cores is None else tensor_cores,
            paged_kv_indptr_buffer=self._items.starts,
            paged_kv_indices_buffer=workspace.indices,
            paged_kv_last_page_len_buffer=self._items.last,
        )
        self._wrapper.reset_workspace_buffer(workspace.floats, workspace.integers)
        self.prepare()

    def prepare(self) -> None:
        """Plan as many rows as there can be. Raises FlashInferError."""
        starts, last = (torch.from_numpy(span) for span in self._shape.spans(np.ones(self._rows, np.int32)))
        with self._workspace.planning():  # binds the kernels, which it may compile
            self._wrapper.plan(*self._arguments(starts, last), **_TYPES)

    def plan(self, rows: Int32, lines: Int32, lengths: Int32) -> None:
        """The next pass: lines of the page table and positions read [requests], no line twice; `rows` are ones.

        Raises FlashInferError.
        """
        padded = np.ones(self._rows, np.int32)
        padded[: len(lengths)] = lengths
        starts, last = self._shape.spans(padded)
        with self._workspace.planning():
            spans = self._items.fill(starts[:0], starts, last, lines)[1:]
            self._library.decode.fast_decode_plan(self._wrapper, *self._arguments(*spans), **_TYPES)

    def gather(self) -> None:
        """Read the pages of the planned lines."""
        self._items.gather()

    def run(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
        """bfloat16 q and out [rows, heads, head_dim]; a layer's keys and values [kv_heads, slots, head_dim]."""
        self._wrapper.run(q, (self._shape.paged(keys), self._shape.paged(values)), out=out)

    def _arguments(self, starts: torch.Tensor, last: torch.Tensor) -> tuple[Any, ...]:
        """Spans on the host, no indices, since `gather` writes them on the device, and the shape."""
        shape, unwritten = self._shape, self._workspace.indices[:0]
        return starts, unwritten, last, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.page_size


class PrefillAttention:
    """Attention of up to `rows` rows, which are consecutive tokens of up to `requests` requests."""

    def __init__(self, shape: PagedShape, rows: int, requests: int, workspace: FlashInferWorkspace) -> None:
        self._shape = shape
        self._rows = rows
        self._requests = requests
        self._planned = rows
        self._workspace = workspace
        self._items = _Items(requests, workspace)
        self._wrapper = load_flashinfer().BatchPrefillWithPagedKVCacheWrapper(
            workspace.floats,
            "HND",
            use_cuda_graph=True,
            qo_indptr_buf=self._items.row_starts,
            paged_kv_indptr_buf=self._items.starts,
            paged_kv_indices_buf=workspace.indices,
            paged_kv_last_page_len_buf=self._items.last,
        )
        self._wrapper.reset_workspace_buffer(workspace.floats, workspace.integers)
        self.prepare()

    def prepare(self) -> None:
        """Plan as many rows as there can be. Raises FlashInferError."""
        most = np.array([self._rows], np.int32)
        self.plan(most, np.zeros(1, np.int32), most)

    def plan(self, rows: Int32, lines: Int32, lengths: Int32) -> None:
        """The next pass: requests in the order of their rows, which lie end to end from row 0 on; no line twice.

        All [requests]: number of rows, line of the page table, positions the last row reads. Raises FlashInferError.
        """
        shape, self._planned = self._shape, int(rows.sum())
        padded = np.zeros(self._requests, np.int32)
        padded[: len(lengths)] = lengths
        starts, last = shape.spans(padded)
        row_starts = np.full(self._requests + 1, self._planned, np.int32)
        row_starts[0] = 0
        np.cumsum(rows, out=row_starts[1 : len(rows) + 1])
        with self._workspace.planning():
            host_row_starts, host_starts, host_last = self._items.fill(row_starts, starts, last, lines)
            self._wrapper.plan(
                host_row_starts,
                host_starts,
                self._workspace.indices[:0],
                host_last,
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
        self._items.gather()

    def run(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
        """bfloat16 q and out [rows, heads, head_dim]; a layer's keys and values [kv_heads, slots, head_dim]."""
        planned = self._planned  # outside of a graph the library wants no row beyond
        self._wrapper.run(q[:planned], (self._shape.paged(keys), self._shape.paged(values)), out=out[:planned])
