"""The rounds of a GPU, by the kernels' twins, draft what the proposer on the CPU drafts, but for roundings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, SessionRefusedError, Target
from draft_service.proposers.draft_model.base import DraftModelBase, DraftModelConfig
from draft_service.proposers.draft_model.cpu import DraftModelProposer, create
from draft_service.proposers.draft_model.gpu import GpuDraftModelProposer
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from support.models import make_tiny_model
from support.recurrent_target import paths

CONTEXT, VOCAB = 96, 272
GREEDY = Sampling(temperature=0.0)
SAMPLINGS = (
    GREEDY,
    Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=7, choice=1),
    Sampling(temperature=0.8, seed=3, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    Sampling(temperature=0.0, logit_bias={17: 4.0, 23: 4.0}, min_tokens=40, stop_token_ids=(17,)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory, "llama")


def folder_of(tmp_path_factory: pytest.TempPathFactory, family: str) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    return make_tiny_model(folder, seed=1, family=family, vocab_size=VOCAB, max_context=CONTEXT)


def on_cpu(folder: Path, scored: torch.Tensor | None = None, **config: Any) -> DraftModelProposer:
    model = CausalLM.load(folder, threads=1, scored=scored)
    return DraftModelProposer("c", model, DraftModelConfig(**config), scored=scored)


def on_gpu(folder: Path, scored: torch.Tensor | None = None, **config: Any) -> GpuDraftModelProposer:
    settings = DraftModelConfig(**{"max_sessions": 4, "max_cached_tokens": 1} | config)
    return GpuDraftModelProposer.load("g", folder, settings, "cpu", "tokenizer", scored)


MAP = torch.from_numpy(np.random.default_rng(5).permutation(VOCAB)[:99].copy())
"""Tokens that are scored, in the order of a file."""


def text_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def tree_of(proposer: DraftModelBase, session: int, max_nodes: int = 64, max_depth: int = 63) -> TokenTree:
    (tree,) = proposer.propose([DraftRequest(session, max_nodes, max_depth)])
    assert tree is not None
    return tree


def check_log_probs(one: TokenTree, other: TokenTree) -> None:
    """Those of the paths that both trees have."""
    a, b = paths(one), paths(other)
    assert all(abs(a[path] - b[path]) < 0.1 for path in a.keys() & b.keys())


@pytest.mark.parametrize(
    ("family", "top_k", "scored"),
    [("llama", 1, None), ("llama", 3, None), ("qwen3", 2, MAP), ("qwen2", 4, None)],
)
def test_sessions_of_a_round_draft_as_on_the_cpu(
    tmp_path_factory: pytest.TempPathFactory, family: str, top_k: int, scored: torch.Tensor | None
) -> None:
    """Four sessions with rules of their own, some with rows of text that do not fit into a round, over three rounds.

    Rounding may turn a choice, and then all that hangs on it.
    """
    folder = folder_of(tmp_path_factory, family)
    config: dict[str, Any] = {"max_depth": 3, "top_k": top_k, "max_nodes": 10, "scored": scored}
    both = on_cpu(folder, **config), on_gpu(folder, **config, max_cached_tokens=400)
    texts = [text_of(number, length) for number, length in enumerate((2, 9, 40, 63))]
    for proposer in both:
        for number, (text, sampling) in enumerate(zip(texts, SAMPLINGS, strict=True)):
            proposer.open(number, Opening(text, 2, sampling))
    requests = [DraftRequest(number, 11 - 2 * number, 4 - number // 2) for number in range(4)]
    turned = 0
    for step in range(3):
        trees = [proposer.propose(requests) for proposer in both]
        for one, other, request in zip(*trees, requests, strict=True):
            assert one is not None
            assert other is not None
            turned += (one.token_ids, one.parents) != (other.token_ids, other.parents)
            check_log_probs(one, other)
            other.validate(vocab_size=VOCAB, max_nodes=request.max_nodes - 1, max_depth=min(request.max_depth, 3))
            assert scored is None or set(other.token_ids) <= set(scored.tolist())
        for proposer in both:
            for number in range(4):
                proposer.commit(number, text_of(10 * step + number, 1 + 3 * number))
    assert turned <= 3


def test_a_round_without_news_gives_the_same_tree(folder: Path) -> None:
    proposer = on_gpu(folder, max_depth=2, top_k=2, max_nodes=5)
    proposer.open(1, Opening(text_of(1, 20), 20, GREEDY))
    assert tree_of(proposer, 1) == tree_of(proposer, 1)


def test_long_texts_are_computed_between_rounds(folder: Path) -> None:
    proposer = on_gpu(folder, max_depth=2, chunk=16, max_cached_tokens=200)
    long, short = text_of(1, 70), text_of(2, 10)
    proposer.open(1, Opening(long, 70, GREEDY))
    proposer.open(2, Opening(short, 10, GREEDY))
    first = proposer.propose([DraftRequest(1, 8, 4), DraftRequest(2, 8, 4)])
    assert first[0] is None
    assert first[1] is not None
    rounds = 1
    while proposer.advance():
        rounds += 1
    assert rounds == 5, "69 tokens in chunks of 16"
    plain = on_cpu(folder, max_depth=2)
    plain.open(1, Opening(long, 70, GREEDY))
    one, other = tree_of(plain, 1), tree_of(proposer, 1)
    assert one.token_ids == other.token_ids
    check_log_probs(one, other)


def test_sessions_that_push_one_another_out_come_back(folder: Path) -> None:
    """Pages for one context, and one for each session."""
    proposer, fresh = on_gpu(folder, max_depth=2), on_gpu(folder, max_depth=2, max_cached_tokens=400)
    texts = {number: text_of(number, 75) for number in range(1, 5)}
    for number, text in texts.items():
        for each in (proposer, fresh):
            each.open(number, Opening(text, 75, GREEDY))
    for number in (1, 2, 3, 4, 1, 3, 1):
        assert tree_of(proposer, number) == tree_of(fresh, number)
    with pytest.raises(SessionRefusedError, match="4 other requests"):
        proposer.open(5, Opening([1], 1, GREEDY))
    proposer.close(4)
    proposer.open(5, Opening(texts[2], 75, GREEDY))
    assert tree_of(proposer, 5) == tree_of(fresh, 2)


def test_the_context_is_respected(folder: Path) -> None:
    proposer = on_gpu(folder, top_k=1, max_context=50)
    with pytest.raises(SessionRefusedError, match="context is 50"):
        proposer.open(1, Opening(text_of(1, 51), 51, GREEDY))
    proposer.open(2, Opening(text_of(2, 48), 48, GREEDY))
    assert tree_of(proposer, 2).depth == 3
    proposer.commit(2, [11, 12])
    assert tree_of(proposer, 2).depth == 1
    proposer.commit(2, [11])
    assert proposer.propose([DraftRequest(2, 8, 4)]) == [None]
    assert not proposer.advance()


def test_tokens_beyond_either_vocabulary_are_kept_out(folder: Path) -> None:
    proposer = on_gpu(folder, top_k=4, max_nodes=30)
    with pytest.raises(SessionRefusedError, match="outside"):
        proposer.open(1, Opening([5, VOCAB], 2, GREEDY))
    with pytest.raises(FailedPreconditionError):
        proposer.bind(Target(VOCAB, "other", 64))
    proposer.bind(Target(40, "tokenizer", 64))
    for session, sampling in enumerate(SAMPLINGS):
        proposer.open(session, Opening([5, 6, 7], 2, sampling))
        assert max(tree_of(proposer, session).token_ids) < 40
        with pytest.raises(ValueError, match="outside"):
            proposer.commit(session, [VOCAB])


def test_a_token_map_loses_what_the_target_does_not_have(folder: Path) -> None:
    proposer = on_gpu(folder, torch.tensor([200, 30, 7, 20]), top_k=4, max_nodes=30, max_depth=2)
    for limit, left in ((VOCAB, {200, 30, 7, 20}), (100, {30, 7, 20}), (25, {7, 20})):
        proposer.bind(Target(limit, "tokenizer", 64))
        proposer.open(1, Opening([5, 6, 7], 2, SAMPLINGS[2]))
        assert set(tree_of(proposer, 1).token_ids) == left
        proposer.close(1)
    with pytest.raises(FailedPreconditionError, match="none of the target's 7 tokens"):
        proposer.bind(Target(7, "tokenizer", 64))


def test_limits_that_a_gpu_cannot_keep_are_named(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="max_depth is 63"):
        on_gpu(folder, max_depth=63)


def test_a_model_that_only_a_cpu_can_draft_with_stays_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its heads have a size that no kernel takes; the device is never touched."""
    folder = make_tiny_model(tmp_path, head_dim=32, vocab_size=VOCAB, max_context=CONTEXT)
    proposer = create(ProposerOptions("small", str(folder), device="cuda:0"))
    assert isinstance(proposer, DraftModelProposer)
    assert "small drafts on the CPU: head_dim is 32" in caplog.text
