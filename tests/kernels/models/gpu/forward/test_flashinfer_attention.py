from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream_kernels.models.gpu.forward.flashinfer_attention import (
    DecodeAttention,
    FlashInferError,
    FlashInferWorkspace,
    PagedShape,
    PrefillAttention,
    settled_attention,
)
from slipstream_kernels.ops.attention_form import FULL, AttentionForm

INSTALLED = importlib.util.find_spec("flashinfer") is not None
needs_flashinfer = pytest.mark.skipif(
    not (INSTALLED and torch.cuda.is_available()), reason="FlashInfer and a GPU are needed"
)
PAGES, PAGE_SIZE, SCRATCH, LINES = 40, 16, 24, 3


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.skipif(INSTALLED, reason="FlashInfer is installed")
def test_missing_library_is_named_where_it_is_asked_for() -> None:
    with pytest.raises(FlashInferError, match=r"flashinfer-python.*slipstream-server\[gpu\].*--attention triton"):
        settled_attention("flashinfer", mode="fast")
    assert settled_attention("auto", mode="fast") == "triton"


def test_models_with_windows_are_refused() -> None:
    forms = [FULL, AttentionForm(window=100)]
    with pytest.raises(FlashInferError, match="for models without windows, chunks, scales, bounds and sinks"):
        settled_attention("flashinfer", mode="fast", forms=forms)
    assert settled_attention("auto", mode="fast", forms=forms) == "triton"


def test_keys_and_values_of_8_bits_are_refused() -> None:
    with pytest.raises(FlashInferError, match="reads no KV cache in FP8"):
        settled_attention("flashinfer", mode="fast", fp8=True)
    assert settled_attention("auto", mode="fast", fp8=True) == "triton"


@pytest.mark.skipif(INSTALLED, reason="FlashInfer is installed")
def test_a_home_that_takes_nothing_is_no_reason_to_go_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package makes a folder as it is imported, as FlashInfer does."""
    (tmp_path / "flashinfer.py").write_text(
        "import os, pathlib\n"
        "base = pathlib.Path(os.environ.get('FLASHINFER_WORKSPACE_BASE') or pathlib.Path.home())\n"
        "(base / '.cache' / 'flashinfer').mkdir(parents=True, exist_ok=True)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HOME", "/dev/null/home")
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "")
    assert settled_attention("auto", mode="fast") == "flashinfer"
    assert (Path(os.environ["FLASHINFER_WORKSPACE_BASE"]) / ".cache" / "flashinfer").is_dir()
    del sys.modules["flashinfer"]


@pytest.mark.skipif(INSTALLED, reason="FlashInfer is installed")
def test_an_import_that_finds_no_folder_is_as_if_it_were_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flashinfer.py").write_text("raise OSError('read-only file system')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FlashInferError, match="read-only file system"):
        settled_attention("flashinfer", mode="fast")
    assert settled_attention("auto", mode="fast") == "triton"


def test_exact_mode_refuses_flashinfer() -> None:
    with pytest.raises(FlashInferError, match="--mode fast"):
        settled_attention("flashinfer", mode="exact")
    assert settled_attention("auto", mode="exact") == "triton"
    assert settled_attention("triton", mode="fast") == "triton"


def test_pages_are_a_view_of_the_cache() -> None:
    cache = torch.arange(2 * (3 * 4 + 5) * 8).view(2, 17, 8)
    paged = PagedShape(num_heads=2, num_kv_heads=2, head_dim=8, page_size=4, num_pages=3).paged(cache)
    assert paged.shape == (3, 2, 4, 8)
    for page, head, offset in ((0, 0, 0), (2, 1, 3), (1, 0, 2)):
        assert torch.equal(paged[page, head, offset], cache[head, page * 4 + offset])
    assert paged.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()


@pytest.mark.parametrize("page_size", [1, 16])
def test_spans_hold_all_positions(page_size: int) -> None:
    shape = PagedShape(num_heads=1, num_kv_heads=1, head_dim=64, page_size=page_size, num_pages=99)
    lengths = int32(0, 1, 15, 16, 17, 33)
    starts, last = shape.spans(lengths)
    assert starts.dtype == last.dtype == np.int32
    assert starts[:2].tolist() == [0, 0]
    assert last[0] == 0
    assert (((np.diff(starts)[1:] - 1) * page_size + last[1:]) == lengths[1:]).all()
    assert ((last[1:] >= 1) & (last[1:] <= page_size)).all()


class Cache:
    """Random keys and values with NaN where nothing is committed, and a shuffled page table."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int) -> None:
        torch.manual_seed(heads + head_dim)
        self.shape = PagedShape(heads, kv_heads, head_dim, PAGE_SIZE, PAGES)
        slots = PAGES * PAGE_SIZE + SCRATCH
        self.keys, self.values = (torch.randn(kv_heads, slots, head_dim, device="cuda").bfloat16() for _ in range(2))
        self.keys[:, PAGES * PAGE_SIZE :] = self.values[:, PAGES * PAGE_SIZE :] = torch.nan
        pages = torch.randperm(PAGES)[: LINES * 13].to(torch.int32)
        self.page_table = pages.view(LINES, 13).cuda()

    def expected(self, q: torch.Tensor, line: int, length: int) -> torch.Tensor:
        """float64 attention of one row q [heads, head_dim] over `length` positions."""
        places = torch.arange(length, device="cuda")
        slots = self.page_table[line, places // PAGE_SIZE].long() * PAGE_SIZE + places % PAGE_SIZE
        group = len(q) // len(self.keys)
        keys, values = (kv[:, slots].double().repeat_interleave(group, 0) for kv in (self.keys, self.values))
        scores = torch.einsum("hd,hsd->hs", q.double(), keys) / q.shape[-1] ** 0.5
        return torch.einsum("hs,hsd->hd", scores.softmax(-1), values)


def close(out: torch.Tensor, expected: list[torch.Tensor]) -> bool:
    wanted = torch.stack(expected)
    return bool((out.double() - wanted).norm() < 6e-3 * wanted.norm())


SHAPES = [(8, 2, 128), (3, 1, 128), (4, 4, 64)]


def captured(attention: DecodeAttention | PrefillAttention, *tensors: torch.Tensor) -> torch.cuda.CUDAGraph:
    def enqueue() -> None:
        attention.gather()
        attention.run(*tensors)

    enqueue()
    attention.prepare()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        enqueue()
    return graph


@needs_flashinfer
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_decode_rows_match_float64(heads: int, kv_heads: int, head_dim: int) -> None:
    cache = Cache(heads, kv_heads, head_dim)
    attention = DecodeAttention(cache.shape, 4, FlashInferWorkspace(cache.page_table, 4, 128 << 20))
    q = torch.randn(4, heads, head_dim, device="cuda").bfloat16()
    out = torch.full_like(q, torch.nan)
    graph = captured(attention, q, cache.keys, cache.values, out)
    lines = int32(2, 0, 1)
    for lengths in (int32(1, 2, 3), int32(200, 16, 77), int32(201, 17, 78)):
        attention.plan(np.ones(3, np.int32), lines, lengths)
        out.fill_(torch.nan)
        graph.replay()
        rows = zip(q[:3], lines.tolist(), lengths.tolist(), strict=True)
        assert close(out[:3], [cache.expected(*row) for row in rows])


@needs_flashinfer
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_prefill_rows_match_float64(heads: int, kv_heads: int, head_dim: int) -> None:
    cache = Cache(heads, kv_heads, head_dim)
    attention = PrefillAttention(cache.shape, 192, 5, FlashInferWorkspace(cache.page_table, 192, 128 << 20))
    q = torch.randn(192, heads, head_dim, device="cuda").bfloat16()
    out = torch.full_like(q, torch.nan)
    graph = captured(attention, q, cache.keys, cache.values, out)
    for counts, lines, lengths in (
        (int32(150, 1, 20), int32(1, 2, 0), int32(200, 33, 20)),
        (int32(1, 1), int32(0, 2), int32(17, 1)),
        (int32(192), int32(2), int32(208)),
    ):
        attention.plan(counts, lines, lengths)
        out.fill_(torch.nan)
        graph.replay()
        expected: list[torch.Tensor] = []
        for count, line, length in zip(counts.tolist(), lines.tolist(), lengths.tolist(), strict=True):
            first = len(expected)
            expected += [cache.expected(q[first + i], line, length - count + i + 1) for i in range(count)]
        assert close(out[: len(expected)], expected)
