"""With draft and target of equal weights every guess must be right, at any temperature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, SessionRefusedError, Target
from draft_service.proposers.draft_model.cpu import DraftModelConfig, DraftModelProposer, create
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.ops.logits import SamplingRows
from slipstream_kernels.ops.sampling import sample
from slipstream_kernels.token_tree import TokenTree
from support.models import make_tiny_model

CONTEXT = 96
GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=7, choice=1)
PENALISED = Sampling(temperature=0.8, seed=3, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
BIASED = Sampling(temperature=0.0, logit_bias={17: 4.0, 23: 4.0}, min_tokens=40, stop_token_ids=(17,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("draft"), seed=1, max_context=CONTEXT)


@pytest.fixture(scope="module")
def model(folder) -> CausalLM:
    return CausalLM.load(folder, threads=1)


def proposer_of(model: CausalLM, **config) -> DraftModelProposer:
    return DraftModelProposer("draft-model", model, DraftModelConfig(**{"top_k": 1} | config), "tokenizer")


def rows_of(model: CausalLM, sampling: Sampling, tokens: list[int], prompt_length: int) -> SamplingRows:
    """Rules for the token after `tokens`, built without the proposer's code."""
    vocab = model.config.vocab_size
    seen = np.zeros((1, vocab), np.uint8)
    seen[0, tokens[:prompt_length]] = 1
    counts = np.bincount(tokens[prompt_length:], minlength=vocab).astype(np.int32)[None]
    masked = len(tokens) - prompt_length < sampling.min_tokens
    stops = [*model.config.eos_token_ids, *sampling.stop_token_ids] if masked else []
    one = lambda value, dtype: np.array([value], dtype)  # noqa: E731 (a table of one-row arrays)
    return SamplingRows(
        position=one(len(tokens), np.int32),
        temperature=one(sampling.temperature, np.float32),
        top_k=one(sampling.top_k, np.int32),
        top_p=one(sampling.top_p, np.float32),
        min_p=one(sampling.min_p, np.float32),
        seed=one(sampling.seed, np.uint64),
        choice=one(sampling.choice, np.uint32),
        repetition=one(sampling.repetition_penalty, np.float32),
        presence=one(sampling.presence_penalty, np.float32),
        frequency=one(sampling.frequency_penalty, np.float32),
        history=one(0, np.int32),
        prompt_seen=seen,
        output_counts=counts,
        path_offsets=np.zeros(2, np.int32),
        path_tokens=np.zeros(0, np.int32),
        bias_offsets=np.array([0, len(sampling.logit_bias)], np.int32),
        bias_ids=np.array(list(sampling.logit_bias), np.int32),
        bias_values=np.array(list(sampling.logit_bias.values()), np.float32),
        mask_offsets=np.array([0, len(stops)], np.int32),
        mask_ids=np.array(stops, np.int32),
    )


def continuation(
    model: CausalLM, sampling: Sampling, prompt: list[int], count: int, only: list[int] | None = None
) -> list[int]:
    """What the model itself says after the prompt, one token a pass, as if it knew none but the tokens in `only`."""
    cache = model.new_cache(num_pages=8, page_size=16, scratch_slots=0)
    tokens, written = list(prompt), 0
    while len(tokens) < len(prompt) + count:
        logits = model.forward(cache, RowBatch.chunk(tokens[written:], written, range(8), 16))
        written = len(tokens)
        if only is not None:
            logits[:, np.setdiff1d(np.arange(model.config.vocab_size), only)] = -np.inf
        tokens.append(int(sample(logits[-1:], rows_of(model, sampling, tokens, len(prompt)))[0]))
    return tokens[len(prompt) :]


def accepted(tree: TokenTree, truth: list[int]) -> int:
    """How many tokens of the true continuation the tree holds on one path."""
    node, length = -1, 0
    for token in truth:
        node = next((child for child in tree.children(node) if tree.token_ids[child] == token), -1)
        if node < 0:
            break
        length += 1
    return length


def prompt_of(seed: int, length: int = 12) -> list[int]:
    return np.random.default_rng(seed).integers(10, 500, length).tolist()


def tree_of(proposer: DraftModelProposer, session: int, max_nodes: int = 64, max_depth: int = 63) -> TokenTree:
    (tree,) = proposer.propose([DraftRequest(session, max_nodes, max_depth)])
    assert tree is not None
    return tree


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED, BIASED])
@pytest.mark.parametrize("depth", [1, 2, 5, 9])
def test_a_chain_of_the_targets_own_weights_is_accepted_whole(model, sampling, depth) -> None:
    proposer = proposer_of(model, max_depth=depth)
    for session in range(1, 4):
        prompt = prompt_of(session)
        proposer.open(session, Opening(prompt, len(prompt), sampling))
        tree = tree_of(proposer, session)
        assert list(tree.token_ids) == continuation(model, sampling, prompt, depth)
        assert tree.parents == tuple(range(-1, depth - 1))


def test_ends_are_masked_until_min_tokens_also_where_they_are_ignored(model) -> None:
    (eos, *_) = model.config.eos_token_ids
    sampling = Sampling(temperature=0.0, logit_bias={eos: 90.0}, min_tokens=3, ignore_eos=True)
    proposer = proposer_of(model, max_depth=5)
    prompt = prompt_of(1)
    proposer.open(1, Opening(prompt, len(prompt), sampling))
    tree = tree_of(proposer, 1)
    assert [token == eos for token in tree.token_ids] == [False] * 3 + [True] * 2
    assert list(tree.token_ids) == continuation(model, sampling, prompt, 5)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED])
@pytest.mark.parametrize("top_k", [2, 4])
def test_a_tree_of_the_targets_own_weights_holds_the_continuation(model, sampling, top_k) -> None:
    proposer = proposer_of(model, max_depth=4, top_k=top_k, max_nodes=64)
    for session in range(1, 5):
        prompt = prompt_of(session)
        proposer.open(session, Opening(prompt, len(prompt), sampling))
        tree = tree_of(proposer, session)
        tree.validate(vocab_size=512, max_nodes=63, max_depth=4)
        truth = continuation(model, sampling, prompt, 4)
        if sampling is GREEDY and top_k == 4:
            assert accepted(tree, truth) >= 1
        assert tree.children(-1)
        assert tree.token_ids[tree.children(-1)[0]] == truth[0]


def mapped_to(folder, tmp_path, ids, argument="topk=1:max_depth=5") -> DraftModelProposer:
    torch.save(ids, tmp_path / "freq.pt")
    made = create(ProposerOptions("mapped", f"{folder}:{argument}", threads=1, token_map=f"{tmp_path}/freq.pt"))
    assert isinstance(made, DraftModelProposer)
    return made


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED, BIASED])
@pytest.mark.parametrize("tied", [True, False])
def test_with_a_token_map_others_are_read_but_never_drafted(tmp_path, sampling, tied) -> None:
    """The map, in its own order, has no token of the prompt; of the biased ones it has one."""
    folder = make_tiny_model(tmp_path / "draft", seed=1, max_context=CONTEXT, tied=tied)
    prompt = prompt_of(1)
    ids = [token for token in np.random.default_rng(2).permutation(512).tolist() if token not in [*prompt, 23]][:90]
    proposer = mapped_to(folder, tmp_path, ids := [17, *ids])
    proposer.open(1, Opening(prompt, len(prompt), sampling))
    tree = tree_of(proposer, 1)
    model = CausalLM.load(folder, threads=1)
    assert list(tree.token_ids) == continuation(model, sampling, prompt, 5, only=ids)
    assert list(tree.token_ids) != continuation(model, sampling, prompt, 5) or sampling is BIASED


def test_a_token_map_smaller_than_a_node_s_children(folder, tmp_path) -> None:
    proposer = mapped_to(folder, tmp_path, [7, 400, 3], "topk=4:max_depth=2:max_nodes=20")
    proposer.open(1, Opening(prompt_of(1), 12, PENALISED))
    assert len(tree_of(proposer, 1)) == 12
    proposer.close(1)
    proposer.bind(Target(40, proposer.tokenizer_fingerprint, 64))
    for number, sampling in enumerate((GREEDY, PENALISED)):
        proposer.open(number, Opening([5, 6], 2, sampling))
        tree = tree_of(proposer, number)
        tree.validate(vocab_size=40, max_nodes=19, max_depth=2)
        assert (len(tree), set(tree.token_ids)) == (6, {3, 7})
        proposer.close(number)
    with pytest.raises(FailedPreconditionError, match="none of the target's 3 tokens"):
        proposer.bind(Target(3, proposer.tokenizer_fingerprint, 64))


@pytest.mark.parametrize(
    ("content", "message"), [([5, 512], "from 5 to 512 of 512"), ([5, 5], "twice"), ([], "not a list"), ("a", "not a")]
)
def test_a_token_map_that_does_not_fit_is_refused(folder, tmp_path, content, message) -> None:
    with pytest.raises(InvalidArgumentError, match=f"mapped: .*freq.pt.*{message}"):
        mapped_to(folder, tmp_path, content)


def test_budgets_of_the_request_are_kept(model) -> None:
    proposer = proposer_of(model, max_depth=6, top_k=3, max_nodes=40)
    proposer.open(1, Opening(prompt_of(1), 12, GREEDY))
    for max_nodes, max_depth in [(2, 1), (5, 2), (8, 6), (40, 3), (64, 63)]:
        tree = tree_of(proposer, 1, max_nodes, max_depth)
        tree.validate(vocab_size=512, max_nodes=min(max_nodes, 40) - 1, max_depth=min(max_depth, 6))


@given(
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    sampling=st.sampled_from([GREEDY, SAMPLED, PENALISED]),
    top_k=st.integers(1, 3),
    chunk=st.sampled_from([3, 16, 256]),
)
@settings(max_examples=25)
def test_sessions_that_grew_equal_fresh_ones_and_batches_equal_single_ones(
    model, prompts, steps, sampling, top_k, chunk
) -> None:
    # Room for about two of the sessions, so that they push one another out.
    config = {"max_depth": 3, "top_k": top_k, "max_nodes": 12}
    grown = proposer_of(model, **config, chunk=chunk, page_size=4, max_cached_tokens=1, group=3)
    texts = {number: prompt_of(number, length) for number, length in enumerate(prompts, 1)}
    lengths = {number: len(text) for number, text in texts.items()}
    for number, text in texts.items():
        grown.open(number, Opening(text, len(text), sampling))
    for step in steps:
        trees = grown.propose([DraftRequest(number, 12, 3) for number in texts])
        while grown.advance():
            pass
        for (number, text), tree in zip(texts.items(), trees, strict=True):
            if tree is not None:
                fresh = proposer_of(model, **config)
                fresh.open(1, Opening(text, lengths[number], sampling))
                assert tree == tree_of(fresh, 1, 12)
            new = prompt_of(len(text), step)
            text.extend(new)
            grown.commit(number, new)


def test_idle_sessions_make_room_and_come_back(model) -> None:
    proposer = proposer_of(model, page_size=8, max_cached_tokens=1)
    prompts = {session: prompt_of(session, 60) for session in range(1, 5)}
    for session, prompt in prompts.items():
        proposer.open(session, Opening(prompt, 60, GREEDY))
    for session in [1, 2, 3, 4, 1, 3, 1]:
        assert list(tree_of(proposer, session).token_ids) == continuation(model, GREEDY, prompts[session], 4)
    both = proposer.propose([DraftRequest(session, 8, 4) for session in (1, 2)])
    assert sum(tree is not None for tree in both) == 1, "two do not fit together"
    for session in prompts:
        proposer.close(session)
    proposer.open(9, Opening(prompts[1], 60, GREEDY))
    assert tree_of(proposer, 9)


def test_a_long_prompt_is_prefilled_between_rounds(model) -> None:
    proposer = proposer_of(model, chunk=16)
    long, short = prompt_of(1, 70), prompt_of(2, 10)
    proposer.open(1, Opening(long, 70, GREEDY))
    proposer.open(2, Opening(short, 10, GREEDY))
    requests = [DraftRequest(1, 8, 4), DraftRequest(2, 8, 4)]
    first = proposer.propose(requests)
    assert first[0] is None
    assert first[1] is not None
    rounds = 1
    while proposer.advance():
        rounds += 1
    assert rounds == 5, "69 tokens in chunks of 16"
    tree, _ = proposer.propose(requests)
    assert tree is not None
    assert list(tree.token_ids) == continuation(model, GREEDY, long, 4)


def test_the_drafts_context_is_respected(model) -> None:
    proposer = proposer_of(model, max_depth=4)
    with pytest.raises(SessionRefusedError):
        proposer.open(1, Opening(prompt_of(1, CONTEXT + 1), CONTEXT + 1, GREEDY))
    proposer.open(2, Opening(prompt_of(2, CONTEXT - 2), CONTEXT - 2, GREEDY))
    assert [len(tree_of(proposer, 2))] == [3]
    for left in (2, 1):
        proposer.commit(2, [11])
        assert len(tree_of(proposer, 2)) == left
    proposer.commit(2, [11])
    assert proposer.propose([DraftRequest(2, 8, 4)]) == [None]
    assert not proposer.advance()


def test_tokens_beyond_either_vocabulary_are_kept_out(model) -> None:
    proposer = proposer_of(model, top_k=4, max_nodes=30)
    with pytest.raises(SessionRefusedError):
        proposer.open(1, Opening([5, 512], 2, GREEDY))
    proposer.bind(Target(vocab_size=40, tokenizer_fingerprint="tokenizer", max_context=64))
    assert {(1, 1), (1, proposer.max_depth)} <= {(cost.requests, cost.levels) for cost in proposer.round_costs}
    for session, sampling in enumerate((GREEDY, SAMPLED, PENALISED, BIASED), 2):
        proposer.open(session, Opening([5, 6, 7], 2, sampling))
        assert max(tree_of(proposer, session).token_ids) < 40
        with pytest.raises(ValueError, match="outside"):
            proposer.commit(session, [512])


def test_another_tokenizer_is_refused(model) -> None:
    with pytest.raises(FailedPreconditionError):
        proposer_of(model).bind(Target(512, "other", 64))


def test_log_probs_are_those_of_the_path(model) -> None:
    proposer = proposer_of(model, max_depth=1, top_k=3, max_nodes=4)
    prompt = prompt_of(3)
    proposer.open(1, Opening(prompt, len(prompt), GREEDY))
    tree = tree_of(proposer, 1)
    cache = model.new_cache(num_pages=8, page_size=16, scratch_slots=0)
    logits = model.forward(cache, RowBatch.chunk(prompt, 0, range(8), 16))[-1].astype(np.float64)
    expected = logits - np.logaddexp.reduce(logits)
    assert tree.log_probs == pytest.approx([expected[token] for token in tree.token_ids], abs=1e-4)


def test_the_factory_loads_a_folder(folder, tmp_path) -> None:
    proposer = create(ProposerOptions("small", str(folder), threads=1, max_depth=3, top_k=2, max_nodes=9))
    assert (proposer.name, proposer.max_depth, proposer.max_nodes, proposer.vocab_size) == ("small", 3, 9, 512)
    assert proposer.tokenizer_fingerprint
    default = create(ProposerOptions("small", str(folder)))
    assert (default.max_depth, default.max_nodes) == (4, 5)
    named = create(ProposerOptions("small", f"{folder}:num_steps=3:topk=2:num_draft_tokens=9", max_depth=2, top_k=4))
    assert (named.max_depth, named.max_nodes, named.config.top_k) == (3, 9, 2)
    for wrong in ("", str(tmp_path / "none"), str(tmp_path), f"{folder}:topk=0", f"{folder}:chunk=-1"):
        with pytest.raises(InvalidArgumentError):
            create(ProposerOptions("small", wrong))
