"""A packed model's logits are those of the bfloat16 model that it decodes to, bit for bit, in whole passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream_kernels.models.gpu.batch import attention_tiles
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops, kernels, twins
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel
from slipstream_kernels.ops.gpu import linear
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.packed.packed_tile import MATRIX_ROWS, PART
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight
from slipstream_kernels.token_tree import TokenTree
from support.gpu_passes import Span, pass_of
from support.models import make_tiny_model
from support.quantised_models import FORMS, LARGE_GROUPS, Form, write_quantised

SIZES = {"max_running": 2, "max_nodes": 4, "step_nodes": 3, "prefill_chunk": 80, "num_pages": 14, "max_context": 256}
PACKED = (
    "fp8 block",
    "fp8 tensor",
    "float channel",
    "int8",
    "int8 zeros",
    "gptq 8 bits",
    *LARGE_GROUPS,
    "pack4 channel",
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def of_all_modules(form: Form) -> Form:
    """The head is quantised too."""
    config = dict(form.config)
    if "ignore" in config:
        config["ignore"] = []
    return Form(config, form.write, ignore=() if "ignore" in config else form.ignore)


def load(folder: Path, ops: Ops | None, **options: Any) -> GpuModel:
    model = GpuModel.load(folder, GpuLimits(**SIZES), device=DEVICE, progress=False, ops=ops, **options)
    model.kv.keys.zero_()
    model.kv.values.zero_()
    return model


def passes(model: GpuModel) -> list[torch.Tensor]:
    """Logits of a prompt of many rows with a short one beside, of decoding rows, and of a tree."""
    tokens = [(7 * index * index + 3) % 272 for index in range(80)]
    pages, others = [0, 7, 3, 4, 5, 6], [1, 2]
    tree = TokenTree((3, 9, 4), (-1, -1, 1))
    logits = []
    for spans in (
        [Span(0, tokens[:70], 0, pages), Span(1, tokens[:4], 0, others)],
        [Span(0, [9], 70, pages), Span(1, [8], 4, others)],
        [Span(0, [5], 71, pages, tree), Span(1, [2], 5, others)],
    ):
        for span in spans:
            model.set_pages(span.line, 0, span.pages)
        handle = model.launch(pass_of(model.limits, spans, all_logits=len(spans[0].tokens) == 1))
        logits.append(handle.logits.clone().cpu())
    return logits


def assert_equal_bits(folder: Path, ops: Ops | None, **options: Any) -> None:
    got, plain = (load(each, ops, **options) for each in (folder, folder.with_name(f"{folder.name}-plain")))
    assert isinstance(got._weights.layers[0].down, PackedWeight)
    assert got.memory.weights == got._weights.nbytes
    pairs = list(zip(passes(got), passes(plain), strict=True))
    assert [len(ours) for ours, _ in pairs] == [2, 2, 5]
    for ours, expected in pairs:
        assert torch.isfinite(ours).all()
        assert torch.equal(ours.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize(("form", "mode"), [*((form, "exact") for form in PACKED), ("awq g128", "fast")])
def test_ops_twins(form: str, mode: str, tmp_path: Path) -> None:
    if DEVICE == "cuda":
        pytest.skip("the ops of a GPU are tested below")
    source = make_tiny_model(tmp_path / "source", vocab_size=272, intermediate_size=256, tied=False)
    folder = write_quantised(source, tmp_path / "model", of_all_modules((FORMS | LARGE_GROUPS)[form]))
    assert_equal_bits(folder, twins() if mode == "exact" else None, mode=mode)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")  # of rows that pad a pass
def test_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter bfloat16 layers are cut as packed ones: its sums depend on the products' shape."""
    monkeypatch.setattr(attention_tiles, "PROGRAMS", 1)
    if DEVICE == "cpu":

        def same(outputs: int, inputs: int, rows: int, *, gated: bool, device: torch.device) -> Tile:
            return Tile(MATRIX_ROWS // (2 if gated else 1), 16, PART, 1)

        monkeypatch.setattr(linear, "best_tile", same)
    source = make_tiny_model(
        tmp_path / "source", layers=1, vocab_size=272, hidden_size=64, intermediate_size=64, tied=False
    )  # fmt: skip
    folder = write_quantised(source, tmp_path / "model", of_all_modules(FORMS["pack4 channel zeros"]))
    assert_equal_bits(folder, kernels())
