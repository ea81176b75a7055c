from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.causal_forward import CausalForward
from slipstream_kernels.models.gpu.draft.networks.draft_forward import DraftSizes
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundItem
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from support.models import make_tiny_model

VOCAB = 300
PAGES = range(8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("draft"), seed=3, vocab_size=VOCAB, max_context=128, tied=False)


def forward_of(folder: Path, below: int | None = None, ids: torch.Tensor | None = None) -> CausalForward:
    config = ModelConfig.from_folder(folder)
    return CausalForward(GpuWeights.load(folder, config, "cpu", progress=False), draft_ops.twins(), below, ids)


@pytest.mark.parametrize("ids", [None, torch.arange(299, 0, -3)])
def test_paths_have_the_model_s_own_probabilities(folder: Path, ids: torch.Tensor | None) -> None:
    """Of a text in two parts, with a tree of the likeliest tokens below it; compared with the CPU's float32."""
    below = 256
    forward = forward_of(folder, below, ids)
    scored = torch.arange(below) if ids is None else ids[ids < below]
    assert forward.shape.entries == len(scored)
    config = forward.weights.shard.config
    limits = DraftLimits(max_depth=3, width=2, max_tokens=128, max_context=128, max_sessions=1)
    draft = DraftRound(forward, limits, rope=config.rope)
    text = np.random.default_rng(1).integers(0, VOCAB, 75).tolist()
    draft.set_pages(0, 0, [3, 1, 0, 6, 2])
    draft.compute_text([RoundItem(0, 0, 0, text[:72])], [])
    (tree,) = draft.draft([RoundItem(0, 72, 72, text[72:], 10, 3)], [], filtered=False)
    tree.validate(vocab_size=below, max_nodes=10, max_depth=3)
    assert len(tree) == 10
    assert tree.depth == 3

    model = CausalLM.load(folder, threads=1)
    for node in range(len(tree)):
        path, place = [], node
        while place >= 0:
            path.insert(0, tree.token_ids[place])
            place = tree.parents[place]
        cache = model.new_cache(num_pages=len(PAGES), page_size=16, scratch_slots=0)
        logits = model.forward(cache, RowBatch.chunk(text + path[:-1], 0, PAGES, 16))[len(text) - 1 :]
        log_probs = torch.full((len(path), VOCAB), -torch.inf, dtype=torch.float64)
        log_probs[:, scored] = torch.from_numpy(logits).double()[:, scored].log_softmax(1)
        expected = float(log_probs[torch.arange(len(path)), path].sum())
        assert tree.log_probs is not None
        assert abs(tree.log_probs[node] - expected) < 0.05


def test_bytes_are_told_beforehand(folder: Path) -> None:
    forward, sizes = forward_of(folder), DraftSizes(text_rows=32, sessions=2, width=4)
    layers = sum(m.nbytes for layer in forward.weights.layers for m in (layer.qkv, layer.o, layer.gate_up, layer.down))
    assert forward.pass_bytes == layers + 2 * VOCAB * 128
    assert forward_of(folder, 256).pass_bytes == layers + 2 * 256 * 128
    mapped = forward_of(folder, None, torch.tensor([7, 3, 9]))
    assert mapped.pass_bytes == layers + 2 * 3 * 128
    assert mapped.nbytes == forward.nbytes + 2 * 3 * 128 + 4 * 3
    hidden, heads, intermediate = 128, 2 * 64, 192
    rows = 2 * (2 * hidden + (heads + 2 * 64) + 2 * heads + intermediate) + 8
    assert forward.activation_bytes(sizes) == 32 * rows + 2 * 2 * (hidden + heads)
