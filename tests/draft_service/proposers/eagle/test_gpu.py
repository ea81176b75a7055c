"""The rounds of a GPU, by the kernels' twins, draft what the proposer on the CPU drafts, but for roundings."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.heads.loading import load_eagle
from draft_service.heads.mtp_loading import load_mtp
from draft_service.proposers.base import (
    DraftRequest,
    FollowRequest,
    Opening,
    ProposerOptions,
    Sampling,
    SessionRefusedError,
    Target,
)
from draft_service.proposers.eagle import mtp
from draft_service.proposers.eagle.base import EagleConfig
from draft_service.proposers.eagle.cpu import EagleProposer
from draft_service.proposers.eagle.gpu import GpuEagleProposer
from draft_service.proposers.eagle.gpu_weights import head_weights
from draft_service.proposers.gpu_common.supported_shapes import NoGpuFormError
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS
from support.eagle_heads import EAGLE1, EAGLE3, write_head, write_target
from support.mtp_heads import LAYOUTS as MTP
from support.mtp_heads import write_mtp
from support.recurrent_target import paths

GREEDY = Sampling(temperature=0.0)
SHARP = 0.5
"""What the scoring rows are multiplied by: log-probabilities are then exact to a few hundredths."""


def proposers(folder, layout, **config):
    """The same head on the CPU and in a GPU's rounds."""
    write_head(folder / "head", layout, seed=2)
    write_target(folder / "target")
    return both_of(lambda: load_eagle(folder / "head", folder / "target"), **config)


def both_of(load, **config):
    """A head on the CPU and in a GPU's rounds, with weights that both hold exactly."""
    made = []
    for kind in (EagleProposer, GpuEagleProposer):
        head = load()
        tensors = [*head.weights.values(), head.vocabulary.embedding, head.vocabulary.head]
        for tensor in {tensor.data_ptr(): tensor for tensor in tensors}.values():
            tensor.copy_(tensor.bfloat16())
        head.vocabulary.head.mul_(SHARP if head.vocabulary.head is not head.vocabulary.embedding else 1)
        settings = EagleConfig(**config)
        made.append(kind("p", head, settings, *(() if kind is EagleProposer else ("cpu",))))
    return made


def random_text(length, width=96):
    """Tokens and states of a text."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(96, (length,), generator=generator).tolist()
    return tokens, torch.randn(length, width, generator=generator).bfloat16()


def alike(one, other, tolerance=0.1):
    """Whether two trees have the same paths, but for choices between paths of almost equal probability."""
    a, b = paths(one), paths(other)
    assert len(a) == len(b)
    for path in a.keys() & b.keys():
        assert abs(a[path] - b[path]) < tolerance, (path, a[path], b[path])
    worst = min(*a.values(), *b.values())
    for own, others in ((a, b), (b, a)):
        for path in own.keys() - others.keys():
            first = next(path[:end] for end in range(1, len(path) + 1) if path[:end] not in others)
            rivals = [worst, *(others[each] for each in others.keys() - own.keys() if len(each) == len(first))]
            assert min(abs(own[first] - rival) for rival in rivals) < 2 * tolerance, (first, a, b)
    assert len(a.keys() & b.keys()) >= len(a) // 2


LAYOUTS = {
    **{
        f"1: {name}": EAGLE1[name]
        for name in (
            "no bias",
            "bias, as the key's absence says",
            "query, key and value biases",
            "norms on both inputs",
            "two layers",
            "speculators with norms",
        )
    },
    **{
        f"3: {name}": EAGLE3[name]
        for name in (
            "midlayer, offsets and mask",
            "whole vocabulary",
            "tied",
            "wider target",
            "one boundary",
            "two layers",
            "norms of heads, wide heads",
            "query, key and value biases",
            "residual after the norm",
            "norm before fc",
            "EAGLE-3.1",
            "long context",
        )
    },
}
"""Those that differ in what is computed."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_drafts_as_on_the_cpu(name, tmp_path):
    layout = LAYOUTS[name]
    both = proposers(tmp_path, layout, max_depth=3, top_k=2, max_nodes=8, max_context=64, max_sessions=1)
    width = (layout.target_hidden or 32) * (layout.states if layout.family == "eagle3" else 1)
    draft_alike(both, width)


def draft_alike(both, width):
    """A text, the same state again, and a text that went on."""
    tokens, states = random_text(14, width)
    trees = []
    for proposer in both:
        proposer.open(1, Opening(tokens[:9], 3, GREEDY))
        proposer.take_features(1, 0, states[:8])
        first = proposer.propose([DraftRequest(1, 64, 63)])[0]
        again = proposer.propose([DraftRequest(1, 64, 63)])[0]
        assert first.token_ids == again.token_ids
        proposer.commit(1, tokens[9:12])
        proposer.take_features(1, 8, states[8:11])
        trees.append((first, proposer.propose([DraftRequest(1, 64, 63)])[0]))
    for one, other in zip(*trees, strict=True):
        assert len(one) == 7
        alike(one, other)


@pytest.mark.parametrize("post_norm", [False, True])
def test_a_single_mtp_layer_drafts_as_on_the_cpu(post_norm, tmp_path):
    write_target(tmp_path)
    write_mtp(tmp_path, MTP["MiMo"], seed=2)
    load = partial(load_mtp, tmp_path, tmp_path, post_norm=post_norm)
    draft_alike(both_of(load, max_depth=3, top_k=2, max_nodes=8, max_context=64, max_sessions=1), 32)


def test_what_only_the_cpu_can_draft_with_stays_there(tmp_path, caplog):
    write_target(tmp_path)
    write_mtp(tmp_path, MTP["NextN, three layers"], seed=2)
    proposer = mtp.create(ProposerOptions("p", str(tmp_path), device="cuda:0"))
    assert isinstance(proposer, EagleProposer)
    assert "p drafts on the CPU: head_dim is 16; a GPU takes 64, 128, 256" in caplog.text
    with pytest.raises(NoGpuFormError, match="3 MTP layers"):
        head_weights(load_mtp(tmp_path), torch.device("cpu"))


SAMPLINGS = [
    GREEDY,
    Sampling(temperature=1.0, seed=11),
    Sampling(temperature=0.7, seed=5, choice=2, top_k=20, top_p=0.9),
    Sampling(temperature=1.0, seed=3, min_p=0.1, presence_penalty=0.5, repetition_penalty=1.2),
    Sampling(temperature=0.0, frequency_penalty=1.0, logit_bias={5: 3.0, 90: -4.0}),
    Sampling(temperature=0.8, seed=8, min_tokens=40, stop_token_ids=(7, 9, 11)),
]


def test_sessions_of_one_round_draft_as_alone_and_as_on_the_cpu(tmp_path):
    layout = EAGLE3["midlayer, offsets and mask"]
    both = proposers(tmp_path, layout, max_depth=4, top_k=3, max_nodes=16, max_context=512, max_sessions=8, chunk=40)
    lengths = (3, 20, 40, 70, 30, 11)
    trees = []
    for proposer in both:
        requests = []
        for number, (sampling, length) in enumerate(zip(SAMPLINGS, lengths, strict=True), 1):
            tokens, states = random_text(length + 6)
            proposer.open(number, Opening(tokens[:length], 2, sampling))
            proposer.take_features(number, 0, states[: length - 1])
            while proposer.advance():
                pass
            proposer.commit(number, tokens[length : length + number])
            proposer.take_features(number, length - 1, states[length - 1 : length - 1 + number])
            requests.append(DraftRequest(number, 20 - 2 * number, 5 - number // 2))
        together = proposer.propose(requests)
        alone = [proposer.propose([request])[0] for request in requests]
        for one, other in zip(together, alone, strict=True):
            assert one.token_ids == other.token_ids
        trees.append(together)
    for one, other, request in zip(*trees, requests, strict=True):
        alike(one, other)
        assert len(other) <= request.max_nodes - 1 and other.depth <= request.max_depth
    assert max(len(tree) for tree in trees[1]) == 15


def test_rows_that_wait_are_computed_in_chunks(tmp_path):
    _, proposer = proposers(tmp_path, EAGLE3["layers.0"], max_depth=2, top_k=2, chunk=16, max_context=256)
    tokens, states = random_text(60)
    proposer.open(1, Opening(tokens, 3, GREEDY, cached_length=4))
    proposer.take_features(1, 4, states[4:59])
    assert proposer.propose([DraftRequest(1, 8, 2)]) == [None]  # more rows than a chunk
    assert [proposer.advance() for _ in range(4)] == [True, True, True, False]
    (tree,) = proposer.propose([DraftRequest(1, 8, 2)])
    proposer.open(2, Opening(tokens[:30], 3, GREEDY, cached_length=4))
    proposer.take_features(2, 4, states[4:10])
    proposer.take_features(2, 10, states[10:29])
    while proposer.advance():
        pass
    proposer.commit(2, tokens[30:45])
    assert proposer.propose([DraftRequest(2, 8, 2)]) == [None]  # their states are not there
    proposer.take_features(2, 29, states[29:44])
    assert proposer.propose([DraftRequest(2, 8, 2)])[0] is not None  # a chunk, and what a round takes
    proposer.commit(2, tokens[45:])
    proposer.take_features(2, 44, states[44:59])
    assert proposer.propose([DraftRequest(2, 8, 2)])[0].token_ids == tree.token_ids
    assert not proposer.advance()


def test_as_many_rows_as_a_round_takes_along_wait_for_it(tmp_path):
    _, proposer = proposers(tmp_path, EAGLE3["layers.0"], max_depth=2, top_k=2, max_context=256)
    tokens, states = random_text(80)
    proposer.open(1, Opening(tokens[:40], 3, GREEDY))
    proposer.take_features(1, 0, states[:39])
    assert not proposer.advance()
    session = proposer._running[1][1]
    assert (session.length, session.pending) == (39, 0)
    for end in range(41, 74):
        proposer.commit(1, tokens[end - 1 : end])
        proposer.take_features(1, end - 2, states[end - 2 : end - 1])
        assert not proposer.advance()
        assert (session.length, session.pending) == ((39, end - 40) if end < 73 else (72, 0))
    proposer.commit(1, tokens[73:78])
    proposer.take_features(1, 72, states[72:77])
    assert not proposer.advance()
    assert proposer.propose([DraftRequest(1, 8, 2)])[0] is not None
    assert session.pending == 0


def test_rows_of_many_sessions_wait_for_no_more_than_a_chunk(tmp_path):
    _, proposer = proposers(tmp_path, EAGLE3["layers.0"], max_depth=2, top_k=2, chunk=128, max_context=256)
    tokens, states = random_text(30)
    sessions = []
    for number in range(1, 5):
        proposer.open(number, Opening(tokens[:24], 3, GREEDY))
        proposer.take_features(number, 0, states[:23])
        sessions.append(proposer._running[1][number])
        assert not proposer.advance()
        assert all(session.pending == 0 for session in sessions) == (number == 4)


def test_ids_that_the_target_has_not_are_not_drafted(tmp_path):
    for layout in (EAGLE3["whole vocabulary"], EAGLE3["offsets alone"]):
        _, proposer = proposers(tmp_path, layout, max_depth=2, top_k=4, max_nodes=20, max_context=64)
        proposer.bind(Target(40, "", 512, hidden_size=32, num_layers=12))
        assert {(1, 1), (1, 2)} <= {(cost.requests, cost.levels) for cost in proposer.round_costs}
        tokens, states = random_text(9)
        proposer.open(1, Opening([token % 40 for token in tokens], 2, Sampling(temperature=1.0)))
        proposer.take_features(1, 0, states[:8])
        (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
        assert len(tree) == 19 and max(tree.token_ids) < 40


def test_what_there_is_no_room_for_is_refused_or_goes_on_without_trees(tmp_path):
    _, proposer = proposers(
        tmp_path, EAGLE3["layers.0"], max_depth=2, top_k=2, max_context=40, max_sessions=2, max_tokens=64
    )
    tokens, states = random_text(48)
    for refused, message in ((tokens[:41], "max_context"), ([96], "vocabulary")):
        with pytest.raises(SessionRefusedError, match=message):
            proposer.open(1, Opening(refused, 2, GREEDY))
    proposer.open(1, Opening(tokens[:30], 2, GREEDY))
    with pytest.raises(SessionRefusedError, match="leave no room"):
        proposer.open(2, Opening(tokens[:35], 2, GREEDY))
    proposer.open(2, Opening(tokens[:9], 2, GREEDY))
    with pytest.raises(SessionRefusedError, match="2 other requests"):
        proposer.open(3, Opening(tokens[:9], 2, GREEDY))
    proposer.take_features(1, 0, states[:29])
    proposer.take_features(2, 0, states[:8])
    proposer.commit(1, tokens[30:42])
    proposer.take_features(1, 29, states[29:41])
    assert [tree is None for tree in proposer.propose([DraftRequest(n, 8, 2) for n in (1, 2)])] == [True, False]
    proposer.commit(1, tokens[42:43])
    proposer.take_features(1, 41, states[41:42])
    assert proposer.propose([DraftRequest(1, 8, 2)]) == [None]
    proposer.close(1)
    proposer.open(3, Opening(tokens[:9], 2, GREEDY))
    proposer.take_features(3, 0, states[:8])
    both = proposer.propose([DraftRequest(n, 8, 2) for n in (2, 3)])
    assert both[0].token_ids == both[1].token_ids


def test_two_that_ask_for_trees_before_either_has_read_any_get_their_own(tmp_path):
    """As a hybrid and a request of the head itself in one pass."""
    _, proposer = proposers(tmp_path, EAGLE1["no bias"], max_depth=3, top_k=2, max_nodes=8, max_context=64)
    for session, length in ((1, 9), (2, 14)):
        tokens, states = random_text(length, 32)
        proposer.open(session, Opening(tokens, len(tokens), GREEDY))
        proposer.take_features(session, 0, states[1:])
    alone = [proposer.propose([DraftRequest(session, 8, 3)]) for session in (1, 2)]
    begun = [proposer.begin([DraftRequest(session, 8, 3)]) for session in (1, 2)]
    assert [each.result() for each in begun] == alone
    assert None not in (alone[0][0], alone[1][0]) and alone[0] != alone[1]


def test_nothing_is_begun_behind_a_pass_while_a_round_is_under_way(tmp_path, monkeypatch):
    """The loop's thread would wait for it."""
    _, proposer = proposers(tmp_path, EAGLE1["no bias"], max_depth=3, top_k=2, max_nodes=8, max_context=64)
    tokens, states = random_text(9, 32)
    proposer.open(1, Opening(tokens, len(tokens), GREEDY))
    proposer.take_features(1, 0, states[1:])
    proposer.propose([DraftRequest(1, 8, 3)])
    monkeypatch.setattr(type(proposer._round), "is_free", False)
    assert proposer.follow([FollowRequest(1, 0, 1, 0, 8, 3)], None) == EnqueuedRound()
    monkeypatch.setattr(type(proposer._round), "is_free", True)
    with pytest.raises(AttributeError):
        proposer.follow([FollowRequest(1, 0, 1, 0, 8, 3)], None)


def test_what_is_drafted_behind_a_pass_outlasts_the_text_of_others(tmp_path):
    """As long as that is computed in the background, nobody would have a tree of a step's own otherwise."""
    _, proposer = proposers(tmp_path, EAGLE3["layers.0"], max_depth=2, top_k=2, chunk=16, max_context=256)
    tokens, states = random_text(60)
    for session, length in ((1, 10), (2, 50)):
        proposer.open(session, Opening(tokens[:length], 3, GREEDY))
        proposer.take_features(session, 0, states[: length - 1])
    proposer.propose([DraftRequest(1, 8, 2)])
    decided = torch.zeros(1, RESULT_WIDTH, dtype=torch.int32)
    decided[0, 2 + MAX_ROWS] = tokens[10]
    outcome = DevicePassResult(decided, states[9:].flatten(), None)
    enqueued = proposer.follow([FollowRequest(1, 0, 1, 0, 8, 2)], outcome)
    assert list(enqueued.trees) == [0]
    assert proposer.advance(), "text of the other session is computed"
    proposer.commit(1, tokens[10:11])
    proposer.take_features(1, 9, states[9:10])
    begun = proposer.begin([DraftRequest(1, 8, 2)])
    assert begun.device_trees() is not None
    behind = begun.result()
    proposer.open(3, Opening(tokens[:11], 3, GREEDY))
    proposer.take_features(3, 0, states[:10])
    (alone,) = proposer.propose([DraftRequest(3, 8, 2)])
    assert [tree.token_ids for tree in behind] == [alone.token_ids]


def test_weights_as_stored_are_those_that_were_widened_before(tmp_path):
    """Of which the target's rows are another type than the head's; the head computes once it is widened."""
    write_head(tmp_path / "head", EAGLE3["layers.0"], seed=2)
    write_target(tmp_path / "target")
    path = tmp_path / "head" / "model.safetensors"
    stored = {name: each.bfloat16() if each.is_floating_point() else each for name, each in load_file(path).items()}
    save_file(stored, path)
    wide, kept = (
        load_eagle(tmp_path / "head", tmp_path / "target", as_stored=as_stored) for as_stored in (False, True)
    )
    assert kept.weights["fc.weight"].dtype == torch.bfloat16
    assert kept.vocabulary.embedding.dtype == wide.weights["fc.weight"].dtype == torch.float32
    taken = [head_weights(head, torch.device("cpu")) for head in (wide, kept)]
    for expected, found in zip(*(list(weights.tensors()) for weights in taken), strict=True):
        assert expected.dtype == found.dtype and torch.equal(expected, found)
    kept.widen()
    for name, tensor in wide.weights.items():
        assert torch.equal(kept.weights[name], tensor) and kept.weights[name].dtype == torch.float32
    states = torch.randn(5, 96)
    assert torch.equal(kept.fuse(states), wide.fuse(states))
