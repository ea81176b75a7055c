"""Rounds of a small head, by the kernels' twins."""

import pytest
import torch

from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.eagle_forward import EagleForward
from slipstream_kernels.models.gpu.draft.networks.eagle_weights import random_eagle3
from slipstream_kernels.models.gpu.draft.round.draft_handle import DraftHandle
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundItem
from slipstream_kernels.ops.gpu.draft_trees import COUNT
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.ops.rope import Rope
from slipstream_kernels.token_tree import MAX_ROWS

LIMITS = DraftLimits(max_depth=3, width=2, max_tokens=512, max_context=256, max_sessions=4, chunk=32)


@pytest.fixture
def draft():
    weights = random_eagle3(
        hidden=64, intermediate=96, heads=2, kv_heads=1, head_dim=64, vocab=128, entries=80, device="cpu"
    )
    made = DraftRound(EagleForward(weights, draft_ops.twins()), LIMITS, rope=Rope(1e4))
    for line in range(4):
        made.set_pages(line, 0, range(line * 8, line * 8 + 8))
    return made


def text(line, rows):
    """Tokens and states of rows that are a text's for each line."""
    generator = torch.Generator().manual_seed(line)
    return torch.randint(128, (rows,), generator=generator).tolist(), torch.randn(
        rows, 192, generator=generator
    ).bfloat16()


def test_padding_alone_changes_no_text(draft):
    """As when graphs are captured."""
    tokens, states = text(0, 20)
    draft.compute_text([RoundItem(0, 0, 0, tokens)], [states])
    pages = LIMITS.num_pages * 16
    before = [kept[:, :, :pages].clone() for kept in (draft._kv.keys, draft._kv.values)]
    for bucket in draft._buckets.all():
        draft._prepare(bucket)
        draft._run(bucket)
        if bucket.levels:
            assert not draft._buffers.trees(bucket.sessions).trees.result[:, COUNT].any()
    for kept, then in zip((draft._kv.keys, draft._kv.values), before, strict=True):
        assert torch.equal(kept[:, :, :pages], then)


def test_a_tree_depends_on_its_own_text_alone(draft):
    """Not on how the text came, nor on the sessions beside it."""
    tokens, states = text(1, 24)
    draft.compute_text([RoundItem(0, 0, 5, tokens[:20])], [states[:20]])
    (whole,) = draft.draft([RoundItem(0, 20, 25, tokens[20:], 9, 3)], [states[20:]], filtered=False)
    items, parts = [], []
    for line in (1, 2, 3):
        others, their_states = (tokens, states) if line == 2 else text(line + 7, 24)
        for begin, end in ((0, 7), (7, 21)):
            draft.compute_text([RoundItem(line, begin, 5 + begin, others[begin:end])], [their_states[begin:end]])
        items.append(RoundItem(line, 21, 26, others[21:], 9, 3))
        parts.append(their_states[21:])
    trees = draft.draft(items, parts, filtered=True)
    assert len(whole) == 9 and whole.depth == 3
    assert (trees[1].token_ids, trees[1].parents) == (whole.token_ids, whole.parents)
    assert trees[0].token_ids != whole.token_ids


def test_limits_of_each_session(draft):
    items, parts = [], []
    for line, (nodes, depth) in enumerate(((4, 3), (9, 1), (1, 1))):
        tokens, states = text(line, 3)
        items.append(RoundItem(line, 0, 0, tokens, nodes, depth))
        parts.append(states)
    trees = draft.draft(items, parts, filtered=False)
    assert [len(tree) for tree in trees] == [4, 2, 1]
    assert [tree.depth <= item.max_depth for tree, item in zip(trees, items, strict=True)] == [True] * 3


def test_trees_that_nobody_read_yet_outlive_the_next_round(draft):
    """Whatever that is: trees, or text."""
    texts = [text(line, 4) for line in range(4)]
    items = [RoundItem(line, 0, 0, tokens, 9, 3) for line, (tokens, _) in enumerate(texts)]
    alone = [draft.draft([item], [states], filtered=False) for item, (_, states) in zip(items, texts, strict=True)]
    tickets = [draft.begin([item], [states], filtered=False) for item, (_, states) in zip(items, texts, strict=True)]
    draft.compute_text([RoundItem(3, 4, 4, texts[0][0])], [texts[0][1]])
    assert [ticket.trees() for ticket in tickets] == alone
    assert len({tree.token_ids for (tree,) in alone}) == 4


def test_a_round_behind_a_pass_takes_no_trees_away_and_loses_none(draft):
    """A pass that accepted nothing and added one token."""
    texts = [text(line, 5) for line in range(3)]
    first, second, third = (
        (RoundItem(line, 0, 0, tokens[:4], 9, 3), states[:4]) for line, (tokens, states) in enumerate(texts)
    )
    alone = [draft.draft([item], [states], filtered=False) for item, states in (first, second, third)]
    tokens, states = texts[0]
    after = draft.draft([RoundItem(0, 4, 4, tokens[4:], 9, 3)], [states[4:]], filtered=False)
    results = torch.zeros(1, RESULT_WIDTH, dtype=torch.int32)
    results[0, 2 + MAX_ROWS] = tokens[4]
    before = draft.begin([second[0]], [second[1]], filtered=False)
    follower = RoundItem(0, 4, 4, [0], 9, 3)
    behind = draft.follow([follower], [(0, 0)], results, states[4:].flatten(), ready=None, filtered=False)
    last = draft.begin([third[0]], [third[1]], filtered=False)
    assert [before.trees(), behind.trees(), last.trees()] == [alone[1], after, alone[2]]


def test_a_round_is_free_once_the_trees_of_the_one_before_are_there(draft):
    class Event:
        done = False

        def query(self):
            return self.done

    assert draft.is_free
    draft._latest = DraftHandle(draft._result_words[:1], Event())
    assert not draft.is_free
    Event.done = True
    assert draft.is_free
