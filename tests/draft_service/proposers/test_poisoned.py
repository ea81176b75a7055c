"""Drafters whose weights hold no numbers are refused at the start, or draft nothing where they show it later."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling
from draft_service.proposers.draft_model.cpu import create
from slipstream.rpc.errors import InvalidArgumentError
from support.models import make_tiny_model

POISONED = 300


def folder_with(folder: Path, name: str, row: int) -> Path:
    make_tiny_model(folder, tied=False, max_context=64)
    tensors = load_file(folder / "model.safetensors")
    tensors[name][row] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight", "model.layers.0.self_attn.v_proj.weight"])
def test_a_draft_model_of_what_is_no_number_is_refused(name: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", name, 7)
    with pytest.raises(InvalidArgumentError, match=r"proposer draft-model: the logits .* are not finite numbers"):
        create(ProposerOptions("draft-model", str(folder), threads=1))


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(temperature=0.8, seed=1, top_p=0.9, presence_penalty=0.5)]
)
def test_a_text_that_leads_there_gets_no_tree_and_others_get_theirs(sampling: Sampling, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", "model.embed_tokens.weight", POISONED)
    proposer = create(ProposerOptions("draft-model", str(folder), threads=1, max_nodes=8, max_depth=3))
    for session, tokens in enumerate(([5, 6, 7], [5, POISONED, 7])):
        proposer.open(session, Opening(tokens, len(tokens), sampling=sampling))
    alone, poisoned = proposer.propose([DraftRequest(0, 8, 3), DraftRequest(1, 8, 3)])
    assert alone is not None and len(alone)
    assert poisoned is None or not len(poisoned)
