"""Every kind of form in a GPU's passes: their twins against transformers, the kernels against their twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.gpu.batch import attention_tiles
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.forward.ops_namespace import kernels
from slipstream_kernels.models.gpu.forward.weights import GpuWeights, weight_bytes
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.memory_plan import resolved_limits
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.token_tree import TokenTree
from support.families import FORMS, GEMMA2, ROPES
from support.gpu_passes import Span, pass_of
from support.models import make_tiny_model

SIZES = {
    "max_running": 2, "max_nodes": 64, "step_nodes": 80, "prefill_chunk": 64, "num_pages": 12, "max_context": 128,
}  # fmt: skip


def load(folder: Path, device: str = "cpu", *, sizes: dict[str, int] = SIZES, **options: Any) -> GpuModel:
    model = GpuModel.load(folder, GpuLimits(**sizes), device=device, progress=False, **options)
    model.kv.keys.fill_(torch.nan)
    model.kv.values.fill_(torch.nan)
    for buffer in model._pool._storage.values():
        buffer.zero_()  # padding is computed too, and the interpreter warns of what overflows
    model.wait()
    return model


def logits_of(model: GpuModel, spans: list[Span], *, all_logits: bool = True) -> torch.Tensor:
    for span in spans:
        model.set_pages(span.line, 0, span.pages)
    logits = model.launch(pass_of(model.limits, spans, all_logits=all_logits)).logits
    model.wait()
    return logits.clone().cpu()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    "name",
    ["longrope, long", "llama, all biases", "qwen2, window above", "phi4-mini", "gemma2", "gemma3, transformers 5"],
)
@pytest.mark.filterwarnings("ignore")  # of fields that transformers reads and would name otherwise
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **(ROPES | FORMS)[name])
    model = load(folder)
    tokens = np.random.default_rng(0).integers(0, 512, 80).tolist()
    pages = [3, 9, 1, 7, 5]
    found = torch.cat([logits_of(model, [Span(1, tokens[a:b], a, pages)]) for a, b in ((0, 50), (50, 51), (51, 80))])
    twin = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )  # fmt: skip
    with torch.no_grad():
        expected = twin(torch.tensor([tokens])).logits[0]
    assert relative_error(found, expected) < 0.02
    assert model._weights.nbytes == weight_bytes(model._weights.shard)


def test_kernels_agree_with_their_twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model with windows, bounds, scales and norms of all kinds: prompts, rows alone, and trees cut either way."""
    monkeypatch.setattr(attention_tiles, "PROGRAMS", 1)
    least = GEMMA2 | {"layers": 2, "vocab_size": 272, "intermediate_size": 32, "heads": 2}
    folder = make_tiny_model(tmp_path / "model", **least)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours, theirs = load(folder, device, ops=kernels()), load(folder)
    tokens = np.random.default_rng(0).integers(0, 272, 70).tolist()
    tree, pages = TokenTree((3, 9, 4), (-1, 0, -1)), [0, 7, 3, 4, 5]
    for tiled_trees, span in (
        (1, Span(0, tokens[:62], 0, pages)),
        (1, Span(0, [9], 62, pages)),
        (1, Span(0, [9], 63, pages, tree)),
        (100, Span(0, [9], 63, pages, tree)),
    ):
        monkeypatch.setattr(attention_tiles, "TREE_PROGRAMS", tiled_trees)
        found, expected = (logits_of(model, [span], all_logits=len(span.tree) > 0) for model in (ours, theirs))
        assert torch.isfinite(found).all() and found.abs().max() < 3
        assert relative_error(found, expected) < 1e-2


@pytest.mark.parametrize("name", ["llama, all biases", "gemma2"])
def test_ranks_share_a_model_of_any_form(name: str, tmp_path: Path) -> None:
    """Parts of the ranks hold the whole, and what all of them add is in each as it is."""
    form = FORMS[name] | {"heads": 4, "kv_heads": 2}
    folder = make_tiny_model(tmp_path / "model", **form)
    config = ModelConfig.from_folder(folder)
    whole = GpuWeights.load(folder, config, "cpu", progress=False).layers[0]
    parts = [GpuWeights.load(folder, config, "cpu", rank=i, size=2, progress=False).layers[0] for i in range(2)]
    for each in parts:
        for name in ("input_norm", "attention_norm", "mlp_norm", "o_bias", "down_bias"):
            mine, all_of_it = getattr(each, name), getattr(whole, name)
            assert (mine is None and all_of_it is None) or torch.equal(mine, all_of_it)
    if whole.gate_up_bias is not None:
        assert torch.equal(torch.cat([each.gate_up_bias for each in parts]), whole.gate_up_bias)
    assert (whole.input_norm.dtype == torch.float32) == config.form.stored_less_one


def test_heads_that_no_kernel_takes_are_refused_by_a_gpu(tmp_path: Path) -> None:
    config = ModelConfig.from_folder(make_tiny_model(tmp_path / "model", heads=1, head_dim=96))
    with pytest.raises(CheckpointError, match="head_dim is 96; a GPU takes 64, 128, 256"):
        resolved_limits(
            Shard(config), GpuLimits(), torch.device("cuda"), "exact", "triton", None, held=0, capture=False
        )  # fmt: skip


def test_layers_of_all_kinds(tmp_path: Path) -> None:
    config = ModelConfig.from_folder(make_tiny_model(tmp_path / "model", **FORMS["gemma3"]))
    assert config.layers_of_all_kinds == 6
    assert replace(config, form=replace(config.form, window=0)).layers_of_all_kinds == 1
