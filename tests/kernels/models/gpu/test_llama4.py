"""Llama-4 in a GPU's passes: the kernels against their twins, its parts on ranks, and experts that stay in eight bits.

The twins are compared with transformers with the other mixtures, in `test_experts`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from slipstream_kernels.models.gpu.forward.ops_namespace import kernels
from slipstream_kernels.models.gpu.forward.weights import GpuWeights, weight_bytes
from slipstream_kernels.ops.gpu.experts.fragment_experts import FragmentExperts
from slipstream_kernels.ops.gpu.gate_up import separate_gate_up
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight
from slipstream_kernels.token_tree import TokenTree
from support.experts import add_vision, part_experts
from support.families import EXPERTS
from support.gpu_passes import Span
from support.models import make_tiny_model
from tests.kernels.models.gpu.test_experts import LEAST
from tests.kernels.models.gpu.test_families import load, logits_of, relative_error

PAGES = [3, 9, 1, 7, 5, 2, 8]


def form(**changes: Any) -> dict[str, Any]:
    own = EXPERTS["llama4"]
    return own | {"overrides": own["overrides"] | changes}


def test_kernels_agree_with_their_twins(tmp_path: Path) -> None:
    """A prompt and a tree, which crosses from one chunk into the next, in layers of both kinds."""
    kinds = form(moe_layers=[1], no_rope_layers=[0, 1], floor_scale=6, num_local_experts=3, intermediate_size_mlp=32)
    least = kinds | {
        "layers": 2,
        "vocab_size": 272,
        "intermediate_size": 32,
        "hidden_size": 64,
        "heads": 2,
        "kv_heads": 1,
    }
    folder = make_tiny_model(tmp_path / "model", **least)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours, theirs = load(folder, device, ops=kernels(), sizes=LEAST), load(folder, sizes=LEAST)
    tokens = np.random.default_rng(0).integers(0, 272, 14).tolist()
    tree, pages = TokenTree((3, 9, 4, 7), (-1, 0, -1, 1)), [0, 2, 1]
    for span in (Span(0, tokens, 0, pages), Span(0, [9], 14, pages, tree)):
        found, expected = (logits_of(model, [span], all_logits=len(span.tree) > 0) for model in (ours, theirs))
        assert torch.isfinite(found).all()
        assert relative_error(found, expected) < 2e-2


def test_nodes_of_trees_are_rows_of_chains(tmp_path: Path) -> None:
    """Every node has the logits of its path as a text, whether its chunk begins before the tree or within it."""
    model = load(make_tiny_model(tmp_path / "model", **EXPERTS["llama4"]))
    tokens = np.random.default_rng(1).integers(0, 512, 40).tolist()
    parents = (-1, 0, -1, 1, 3)
    tree = TokenTree((3, 9, 4, 7, 11), parents)
    for length in (29, 31):
        logits_of(model, [Span(1, tokens[:length], 0, PAGES)])
        found = logits_of(model, [Span(1, [tokens[length]], length, PAGES, tree)])
        for node in range(len(tree)):
            path, at = [], node
            while at >= 0:
                path.insert(0, tree.token_ids[at])
                at = parents[at]
            chain = [*tokens[: length + 1], *path]
            alone = logits_of(model, [Span(0, chain, 0, [0, 4, 6])])
            assert torch.equal(found[1 + node], alone[-1]), (length, node)


@pytest.mark.parametrize("ranks", [1, 2])
def test_experts_in_fp8_stay_packed(ranks: int, tmp_path: Path) -> None:
    """What they decode to is what another device loads, on every rank its part; so are those of the shared expert."""
    folder = make_tiny_model(tmp_path / "model", **EXPERTS["llama4"] | {"intermediate_size": 128})
    part_experts(folder)
    add_vision(folder)
    quantise_folder(folder, tmp_path / "quantised", RoundedFormat("fp8", 128))
    config = ModelConfig.from_folder(tmp_path / "quantised")
    expected = load_tensors(tmp_path / "quantised", config)
    for rank in range(ranks):
        weights = GpuWeights.load(tmp_path / "quantised", config, "cpu", rank=rank, size=ranks, progress=False)
        layer = weights.layers[2]
        assert layer.experts is not None and isinstance(layer.experts.gate_up, FragmentExperts)
        assert isinstance(layer.experts.down, FragmentExperts) and weights.nbytes == weight_bytes(weights.shard)
        assert isinstance(layer.gate_up, PackedWeight)
        prefix = "model.layers.2.mlp.experts.1."
        gate, up = separate_gate_up(layer.experts.gate_up.decoded(1)).chunk(2)
        part = slice(rank * len(gate), (rank + 1) * len(gate))
        assert torch.equal(gate, expected[prefix + "gate_proj.weight"][part])
        assert torch.equal(up, expected[prefix + "up_proj.weight"][part])
        assert torch.equal(layer.experts.down.decoded(1), expected[prefix + "down_proj.weight"][:, part])
        assert layer.q_norm is None and weights.layers[1].q_norm is not None
        assert weights.layers[1].q_norm.eq(1).all()
