"""Passes of a model of e4m3 with activations in e4m3: logits are those of rounded activations and weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import read_adapter
from slipstream_kernels.models.checkpoint.served_config import served_config
from slipstream_kernels.models.gpu.batch import attention_tiles
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops, kernels, twins
from slipstream_kernels.models.gpu.forward.weights import GpuWeights, weight_bytes
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel
from slipstream_kernels.models.gpu.graph.pass_buffers import BufferPool
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu import rotary_linear
from slipstream_kernels.ops.gpu.fp8_linear.fp8_products import fp8_products_reference
from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Weight
from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows_reference
from slipstream_kernels.ops.gpu.gate_up import separate_gate_up
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from slipstream_kernels.ops.kv_cache.kv_codes import decode, encode
from slipstream_kernels.token_tree import TokenTree
from support.gpu_passes import Span, pass_of
from support.lora_adapters import write_adapter
from support.models import make_tiny_model
from support.quantised_models import FORMS, Form, Quantised, write_quantised
from support.thread_ranks import on_ranks

LIMITS = GpuLimits(max_running=2, max_nodes=4, step_nodes=3, prefill_chunk=80, num_pages=14, max_context=256)
FP8 = replace(LIMITS, fp8_activations=True)
VOCAB = 272
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def quantising(layer: Any) -> Any:
    """A layer of bfloat16 weights whose inputs are rounded to e4m3, but for the head's."""

    def op(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, **addends: Any) -> None:
        layer(x if len(weight) == VOCAB else decode(*encode(x)), weight, out, **addends)

    return op


def of_rounded_activations() -> Ops:
    """Twins whose layers do what is wanted with the decoded weights."""
    ops = twins()
    layer = quantising(ops.linear)
    rotary = rotary_linear.in_two_steps(layer, ops.rotary_write)
    return replace(ops, linear=layer, gated_linear=quantising(ops.gated_linear), rotary_linear=rotary)


def load(folder: Path, limits: GpuLimits, ops: Ops | None, **options: Any) -> GpuModel:
    model = GpuModel.load(folder, limits, device=options.pop("device", "cpu"), progress=False, ops=ops, **options)
    model.kv.keys.zero_()
    model.kv.values.zero_()
    return model


def passes(model: GpuModel, adapter: int = -1) -> torch.Tensor:
    """Logits of a prompt of many rows with a short one beside, of decoding rows, and of a tree."""
    tokens = [(7 * index * index + 3) % VOCAB for index in range(80)]
    pages, others = [0, 7, 3, 4, 5, 6], [1, 2]
    logits = []
    for spans in (
        [Span(0, tokens[:70], 0, pages), Span(1, tokens[:4], 0, others)],
        [Span(0, [9], 70, pages), Span(1, [8], 4, others)],
        [Span(0, [5], 71, pages, TokenTree((3, 9, 4), (-1, -1, 1))), Span(1, [2], 5, others)],
    ):
        for span in spans:
            model.set_line(span.line, pack_line(), adapter=adapter if span.line else -1)
            model.set_pages(span.line, 0, span.pages)
        handle = model.launch(pass_of(model.limits, spans, all_logits=len(spans[0].tokens) == 1))
        logits.append(handle.logits.clone().cpu())
    return torch.cat(logits)


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def by_powers_of_two(weight: np.ndarray, rng: np.random.Generator) -> Quantised:  # a writer's signature
    """A scale a row, with which bfloat16 has every weight."""
    exponents = np.ceil(np.log2(np.abs(weight).max(1, keepdims=True) / 448))
    scales = np.exp2(exponents).astype(np.float32)
    codes = torch.from_numpy(weight / scales).to(torch.float8_e4m3fn)
    spread = np.broadcast_to(scales, weight.shape)
    return Quantised(codes.float().numpy(), spread, {"weight": codes, "weight_scale": torch.from_numpy(scales)})


POWERS = Form(FORMS["float channel"].config, by_powers_of_two)


@pytest.fixture(scope="module", params=[FORMS["fp8 tensor"], POWERS], ids=["tensor", "rows"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fp8")
    source = make_tiny_model(path / "source", vocab_size=VOCAB, heads=4, kv_heads=2, tied=False)
    return write_quantised(source, path / "model", request.param)


def test_logits_are_those_of_rounded_activations(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", vocab_size=VOCAB, heads=4, kv_heads=2, tied=False)
    folder = write_quantised(source, tmp_path / "model", POWERS)
    model = load(folder, FP8, twins())
    assert all(isinstance(getattr(layer, name), Fp8Weight) for layer in model._weights.layers for name in ("qkv", "o"))
    got, weight_only = passes(model), passes(load(folder, LIMITS, twins()))
    expected = passes(load(folder.with_name("model-plain"), LIMITS, of_rounded_activations()))
    assert distance(got, weight_only) > 0.02
    assert torch.equal(got, expected)


def test_norms_quantise_what_they_make(folder: Path) -> None:
    """A layer's other two inputs are quantised by themselves."""
    widths = []

    def counted(x: torch.Tensor, *room: torch.Tensor) -> None:
        widths.append(x.shape[1])
        quantise_rows_reference(x, *room)

    model = load(folder, FP8, replace(twins(), quantise_rows=counted))
    shard = model._weights.shard
    passes(model)
    assert widths == [shard.q_size, shard.widest_intermediate] * shard.config.num_layers * 3


def test_memory_is_known_beforehand(folder: Path) -> None:
    model = load(folder, FP8, twins())
    weights = model._weights
    assert model.memory.weights == weights.nbytes == weight_bytes(weights.shard)
    assert weights.nbytes < load(folder, LIMITS, twins())._weights.nbytes  # there is no room to decode in
    plain = Shard(served_config(folder, fp8_activations=False))
    widest = max(weights.shard.config.hidden_size, weights.shard.q_size, weights.shard.widest_intermediate)
    more = (BufferPool(shard, FP8, "meta").nbytes["activations"] for shard in (weights.shard, plain))
    assert next(more) - next(more) == FP8.max_rows * (widest + 4)


def test_codes_lie_where_the_layers_modules_do(folder: Path) -> None:
    config = served_config(folder, fp8_activations=True)
    plain = GpuWeights.load(
        folder.with_name("model-plain"), served_config(folder.with_name("model-plain"), fp8_activations=False), "cpu"
    )
    whole = GpuWeights.load(folder, config, "cpu", progress=False)
    for rank, size in ((0, 1), (0, 2), (1, 2)):
        ours = GpuWeights.load(folder, config, "cpu", rank=rank, size=size, progress=False).layers[0]
        for name in ("qkv", "o", "gate_up", "down"):
            got, all_of_it = getattr(ours, name), getattr(whole.layers[0], name)
            assert isinstance(got, Fp8Weight)
            if size == 1:
                values = got.codes.view(torch.float8_e4m3fn).float() * got.scales[:, None]
                assert torch.equal(values.bfloat16(), getattr(plain.layers[0], name))
            elif name in ("o", "down"):
                assert torch.equal(got.codes, all_of_it.codes.chunk(2, 1)[rank])
            elif name == "gate_up":
                parts, of_whole = (separate_gate_up(each.codes, dim=0).chunk(2) for each in (got, all_of_it))
                assert all(torch.equal(a, b.chunk(2)[rank]) for a, b in zip(parts, of_whole, strict=True))


def test_ranks_compute_what_one_computes(folder: Path) -> None:
    """A rank's part of a token's activations has a scale of its own."""
    ranks = on_ranks(2, lambda group: passes(load(folder, FP8, None, group=group)))
    assert torch.equal(*ranks)
    whole, weight_only = passes(load(folder, FP8, twins())), passes(load(folder, LIMITS, twins()))
    assert distance(ranks[0], whole) < 0.05
    assert not torch.equal(ranks[0], weight_only)


def test_adapters_add_to_the_layers_outputs(folder: Path, tmp_path: Path) -> None:
    config = served_config(folder, fp8_activations=True)
    adapter = read_adapter(write_adapter(tmp_path / "adapter", folder.with_name("source"), rank=8), config)
    model = load(folder, replace(FP8, max_adapters=1), twins())
    model.write_adapter(0, adapter)
    without, plain = passes(model), passes(load(folder, FP8, twins()))
    assert distance(without, plain) < 1e-2
    with_it = passes(model, adapter=0)
    of_decoded = load(folder, replace(LIMITS, max_adapters=1), twins())
    of_decoded.write_adapter(0, adapter)
    moved, expected = with_it - without, passes(of_decoded, adapter=0) - passes(of_decoded)
    assert float(moved.norm()) > 0
    assert distance(moved, expected) < 0.3


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")  # of rows that pad a pass
def test_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tiles, "PROGRAMS", 1)
    source = make_tiny_model(
        tmp_path / "source", layers=1, vocab_size=VOCAB, hidden_size=64, intermediate_size=64, tied=False
    )  # fmt: skip
    folder = write_quantised(source, tmp_path / "model", POWERS)
    ops = kernels()
    beside = replace(ops, fp8_products=fp8_products_reference, quantise_rows=quantise_rows_reference)
    got, expected, weight_only = (
        passes(load(folder, limits, each, device=DEVICE)) for limits, each in ((FP8, ops), (FP8, beside), (LIMITS, ops))
    )
    assert distance(got, expected) < 1e-3 < distance(got, weight_only)
