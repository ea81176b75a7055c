"""Passes whose rows have LoRA adapters, by the kernels (in Triton's interpreter without a GPU) and by their twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter, read_adapter
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.gpu.forward.adapters import GpuAdapters
from slipstream_kernels.models.gpu.forward.ops_namespace import kernels, twins
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel
from slipstream_kernels.models.gpu.memory_plan import OutOfDeviceMemoryError, plan_memory
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows, gather_adapter_rows_reference
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from slipstream_kernels.token_tree import TokenTree
from support.families import EXPERTS
from support.gpu_passes import Span, pass_of
from support.lora_adapters import merge, write_adapter
from support.models import make_tiny_model

SIZES = {"max_running": 4, "step_nodes": 40, "prefill_chunk": 64, "num_pages": 32, "max_context": 128}
LINE = pack_line()
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {"family": "qwen2"}, "gemma3": {"family": "gemma3_text"}, "phi3": {"family": "phi3"},
    "experts": EXPERTS["qwen2_moe"],
}  # fmt: skip


def load(folder: Path, *adapters: LoraAdapter, ops: Any = twins, rank: int = 16, **options: Any) -> GpuModel:
    limits = GpuLimits(**SIZES, max_adapters=len(adapters), max_adapter_rank=rank)
    device = "cuda" if ops is kernels and torch.cuda.is_available() else "cpu"
    model = GpuModel.load(folder, limits, device=device, ops=ops(), progress=False, **options)
    for slot, adapter in enumerate(adapters):
        model.write_adapter(slot, adapter)
    return model


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 272, count).tolist()


def logits(model: GpuModel, spans: list[Span], slots: list[int]) -> torch.Tensor:
    """Of all rows; `slots` are the adapters of the spans' lines."""
    for span, slot in zip(spans, slots, strict=True):
        model.set_line(span.line, LINE, adapter=slot)
        model.set_pages(span.line, 0, span.pages)
    return model.launch(pass_of(model.limits, spans, all_logits=True)).logits.cpu().clone()


def span(line: int, tokens: list[int], tree: TokenTree | None = None, start: int = 0) -> Span:
    pages = list(range(8 * line, 8 * line + 8))
    return Span(line, tokens, start, pages, tree or TokenTree((), ()))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that the interpreter is done with soon."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "heads": 1, "layers": 1, "vocab_size": 272}
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", **sizes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def adapters(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LoraAdapter]:
    folder, config = tmp_path_factory.mktemp("adapters"), ModelConfig.from_folder(tiny)
    options: list[dict[str, Any]] = [{"rank": 8}, {"rank": 16, "seed": 1, "targets": ("k_proj", "up_proj")}]
    return [read_adapter(write_adapter(folder / str(i), tiny, **each), config) for i, each in enumerate(options)]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_merged_weights(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **FAMILIES[name])
    targets = (
        ("qkv_proj", "o_proj", "gate_up_proj") if name == "phi3" else ("q_proj", "v_proj", "gate_proj", "down_proj")
    )
    adapter = read_adapter(
        write_adapter(tmp_path / "adapter", folder, strength=0.3, targets=targets), ModelConfig.from_folder(folder)
    )
    tokens = tokens_of(40)
    found = logits(load(folder, adapter), [span(0, tokens)], [0])
    if name == "phi3":  # whose projections a folder has as one: merged, they are those of a llama
        plain = logits(load(folder, adapter), [span(0, tokens)], [-1])
        assert (found - plain).norm() > 0.05 * plain.norm()
        return
    merged = merge(tmp_path / "merged", folder, adapter)
    with torch.no_grad():
        twin = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
        expected = twin(torch.tensor([tokens])).logits[0]
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_rows_keep_their_bits_whoever_is_beside_them(tiny: Path, adapters: list[LoraAdapter]) -> None:
    """Requests with two adapters and without, alone and together, one of them with a tree; by the ops' twins."""
    model = load(tiny, *adapters)
    prompts = [tokens_of(count, count) for count in (9, 5, 7)]
    slots = [0, 1, -1]
    alone = [logits(model, [span(line, prompts[line])], [slots[line]]) for line in range(3)]
    assert torch.equal(alone[2], logits(load(tiny), [span(2, prompts[2])], [-1]))
    together = logits(model, [span(line, prompts[line]) for line in range(3)], slots)
    assert torch.equal(together, torch.cat(alone))
    chain = TokenTree(tuple(prompts[0][4:]), (-1, 0, 1, 2, 3))
    drafted = logits(model, [span(1, prompts[1][4:], start=4), span(0, prompts[0][3:4], chain, start=3)], [1, 0])
    assert torch.equal(drafted[0], alone[1][4])
    assert torch.equal(drafted[1:], alone[0][3:])


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")  # of rows that pad a pass
def test_rows_keep_their_bits_by_kernels(tiny: Path, adapters: list[LoraAdapter]) -> None:
    """First tokens, and a tree below one, in Triton's interpreter; near the twins, too."""
    model, slots = load(tiny, *adapters, ops=kernels), [0, 1, -1]
    firsts = [span(line, [line + 5]) for line in range(3)]
    alone = [logits(model, [each], [slot]) for each, slot in zip(firsts, slots, strict=True)]
    assert torch.equal(alone[2], logits(load(tiny, ops=kernels), [firsts[2]], [-1]))
    assert torch.equal(logits(model, firsts, slots), torch.cat(alone))
    drafted = logits(model, [firsts[2], span(0, [5], TokenTree((7, 8), (-1, 0)))], [-1, 0])
    assert torch.equal(drafted[:2], torch.cat([alone[2], alone[0]]))
    twin = logits(load(tiny, *adapters), firsts, slots)
    assert (torch.cat(alone) - twin).norm() < 0.01 * twin.norm()


def test_a_slot_takes_another_adapter(tiny: Path, adapters: list[LoraAdapter]) -> None:
    model, spans = load(tiny, adapters[0]), [span(0, tokens_of(6))]
    first = logits(model, spans, [0])
    model.free_adapter(0)
    model.write_adapter(0, adapters[1])
    assert not torch.equal(logits(model, spans, [0]), first)
    model.write_adapter(0, adapters[0])
    assert torch.equal(logits(model, spans, [0]), first)
    with pytest.raises(ValueError, match="rank is 16, the limit is 8"):
        load(tiny, adapters[1], rank=8)


@pytest.mark.parametrize("ops", [twins, kernels])
def test_ranks_have_the_parts_of_their_layers(tiny: Path, adapters: list[LoraAdapter], ops: Any) -> None:
    """Parts of outputs beside one another are those of one rank; parts of inputs each add what their sums make."""
    config = replace(ModelConfig.from_folder(tiny), num_heads=2, num_kv_heads=2, head_dim=32)
    limits = GpuLimits(**SIZES, max_adapters=2, max_adapter_rank=16)
    device = "cuda" if ops is kernels and torch.cuda.is_available() else "cpu"
    parts = [GpuAdapters(Shard(config, rank, 2), limits, device) for rank in range(2)]
    whole = GpuAdapters(Shard(config), limits, device)
    for each in (whole, *parts):
        each.write(1, adapters[0])
    assert all(each.nbytes < whole.nbytes for each in parts)
    rows = AdapterRows.empty(3, 2, 16, device)
    lines, slots = (torch.tensor(each, dtype=torch.int32, device=device) for each in ([2, 1, 0], [1, -1, 1]))
    gather_adapter_rows_reference(lines, lines, slots, 2, rows)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)

    def add(own: GpuAdapters, name: str, x: torch.Tensor, outputs: int) -> torch.Tensor:
        out = torch.ones(3, outputs, device=device)
        weight = torch.zeros(outputs, x.shape[1], dtype=torch.bfloat16, device=device)
        ops().expand(*own.linear(0, name, x, weight, out, rows, ops(), residual=out), out)
        assert torch.equal(out[1], torch.ones_like(out[1])) and not torch.equal(out[0], out[1])
        return out.cpu()

    # An interpreter's products are the processor's library's, whose bits depend on how many columns there are.
    tolerance = 1e-6 if ops is kernels and device == "cpu" else 0.0
    found = [add(each, "qkv", x, 96).split(32, 1) for each in parts]
    beside = torch.cat([part for three in zip(*found, strict=True) for part in three], 1)
    assert torch.allclose(beside, add(whole, "qkv", x, 192), rtol=0, atol=tolerance)
    gated = [add(each, "gate_up", x, 64) for each in parts]
    assert torch.allclose(torch.cat(gated, 1), add(whole, "gate_up", x, 128), rtol=0, atol=tolerance)
    for name, module in (("o", "self_attn.o_proj"), ("down", "mlp.down_proj")):
        weight = adapters[0].weights[f"model.layers.0.{module}"]
        for rank, each in enumerate(parts):
            own = slice(32 * rank, 32 * rank + 32)
            found_part = add(each, name, x[:, own], 64)
            shrunk = (x[:, own].cpu().double() @ weight.a[:, own].double().T).float() * weight.scale
            expected = 1 + (shrunk.bfloat16().double() @ weight.b.double().T).float()
            assert torch.allclose(found_part[[0, 2]], expected[[0, 2]], atol=1e-3)


def test_the_memory_plan_has_room_for_adapters(tiny: Path, adapters: list[LoraAdapter]) -> None:
    model = load(tiny, *adapters)
    assert model._adapters is not None
    assert model.memory.adapters == model._adapters.nbytes > 0
    limits = GpuLimits(**SIZES, max_adapters=1024, max_adapter_rank=128)
    shard = Shard(ModelConfig.from_folder(tiny), 0, 1)
    with pytest.raises(OutOfDeviceMemoryError, match=r"adapters .* GiB.* max_loras"):
        plan_memory(shard, limits, mode="exact", graphs=0, available=100 << 20, on_host=True)
