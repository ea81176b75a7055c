from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from draft_service.proposers.base import Sampling
from draft_service.proposers.cpu_common.kv_cache import DraftSession
from draft_service.proposers.cpu_common.noise_coupling import Coupling
from draft_service.proposers.cpu_common.rows import Branch
from draft_service.proposers.tree_expansion import Expansion
from slipstream_kernels.ops.gpu.draft_expand import draft_expand, draft_expand_reference
from slipstream_kernels.ops.gpu.draft_top_k import draft_top_k, draft_top_k_workspace
from slipstream_kernels.ops.gpu.draft_trees import (
    COUNT,
    LOG_PROBS,
    PARENTS,
    DraftTrees,
    FrontierRows,
    draft_trees,
    frontier_rows,
)
from slipstream_kernels.ops.gpu.sampling_table import IN_PROMPT, SamplingTensors, allocate_sampling_tensors, pack_line
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

LIMITS = [(63, 9), (5, 4), (0, 0), (63, 2), (12, 4), (1, 1), (2, 9)]
"""(nodes, levels) of sessions, one of them padding."""


def finished(trees: DraftTrees, session: int) -> TokenTree:
    words = trees.result[session].cpu()
    count = int(words[COUNT])
    log_probs = words[LOG_PROBS : LOG_PROBS + count].view(torch.float32).tolist()
    parents = words[PARENTS : PARENTS + count].tolist()
    return TokenTree(tuple(words[:count].tolist()), tuple(parents), tuple(log_probs))


def level_of(rng: np.random.Generator, rows: int, width: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Places, scores and log-probabilities with many ties, all exact sums; some places are missing."""
    places = rng.integers(0, 50, (rows, width)).astype(np.int32)
    scores = -rng.integers(0, 7, (rows, width)).astype(np.float32) / 4
    log_probs = -rng.integers(0, 90, (rows, width)).astype(np.float32) / 8
    missing = rng.random((rows, width)) < 0.1
    places[missing], scores[missing], log_probs[missing] = -1, -np.inf, -np.inf
    return tuple(torch.from_numpy(each).to(device) for each in (places, scores, log_probs))


def check_rows(rows: FrontierRows, branch: Expansion, session: int, width: int, above: FrontierRows | None) -> None:
    """The rows of a session's frontier, each with the rows of its ancestors, and what is no row."""
    first, count = session * width, len(branch.frontier)
    assert rows.logit_rows[first : first + width].tolist() == [*range(first, first + count), *[-1] * (width - count)]
    tokens = [branch.token(node) for node in branch.frontier]
    assert rows.token_ids[first : first + width].tolist() == [*tokens, *[0] * (width - count)]
    for row in range(first, first + width):
        parent, own = int(rows.parent_rows[row]), rows.first_row + row
        assert parent == session if above is None else first <= parent < first + width
        path = [] if above is None or row >= first + count else above.paths[parent, : branch.depth - 1].tolist()
        assert rows.paths[row].tolist() == [*path, *[own] * (MAX_ROWS - len(path))]


@pytest.mark.parametrize("op", [draft_expand, draft_expand_reference])
@pytest.mark.parametrize("width", [1, 3, 8, 16])
def test_grows_as_expansion_does(op: Any, width: int, device: torch.device) -> None:
    rng = np.random.default_rng(width)
    levels = 4
    limits = torch.tensor(LIMITS, dtype=torch.int32, device=device)
    vocabulary = torch.arange(100, 200, dtype=torch.int32, device=device) if width == 3 else None
    shift = 0 if vocabulary is None else 100
    trees = draft_trees(len(LIMITS), width, device)
    trees.result.fill_(7)
    rows = frontier_rows(len(LIMITS), width, levels, device)
    branches = [Expansion(width=width, budget=nodes, max_depth=depth) for nodes, depth in LIMITS]
    scored: FrontierRows | None = None
    for level in range(1, levels + 1):
        given = level_of(rng, len(LIMITS) * (1 if scored is None else width), width, device)
        following = rows[level - 1] if level < levels else None
        op(*given, scored, limits, level, vocabulary, trees, following)
        for session, (branch, (budget, depth)) in enumerate(zip(branches, LIMITS, strict=True)):
            if budget and level <= depth:
                first = session * (1 if scored is None else width)
                there = [places >= 0 for places in given[0][first : first + len(branch.frontier)]]
                own = [each[first : first + len(branch.frontier)] for each in given]
                branch.extend(
                    *([v[m].tolist() for v, m in zip(each, there, strict=True)] for each in (own[0] + shift, *own[1:]))
                )
            if following is not None and budget:
                check_rows(following, branch, session, width, scored)
        scored = following
    for session, (branch, (budget, depth)) in enumerate(zip(branches, LIMITS, strict=True)):
        tree = finished(trees, session)
        assert tree == branch.tree()
        tree.validate(vocab_size=200, max_nodes=budget, max_depth=depth)


@dataclass(frozen=True)
class Rules:
    """The rules of sampling of some sessions, for both sides."""

    samplings: tuple[Sampling, ...]
    histories: tuple[tuple[int, ...], ...]

    def coupling(self, vocab_size: int) -> Coupling:
        coupling = Coupling(vocab_size, (2,))
        for session, (sampling, tokens) in enumerate(zip(self.samplings, self.histories, strict=True)):
            coupling.open(session, tokens, 3, sampling)
        return coupling

    def tensors(self, vocab_size: int, device: torch.device) -> SamplingTensors:
        tensors = allocate_sampling_tensors(len(self.samplings), vocab_size, device)
        for line, (s, tokens) in enumerate(zip(self.samplings, self.histories, strict=True)):
            packed = pack_line(
                temperature=s.temperature, top_p=s.top_p, seed=s.seed, presence=s.presence_penalty,
            )  # fmt: skip
            tensors.params[line] = torch.from_numpy(packed)
            tensors.token_flags[line, list(tokens[:3])] = IN_PROMPT
            for token in tokens[3:]:
                tensors.output_counts[line, token] += 1
        return tensors


def test_a_round_proposes_what_the_cpu_does(device: torch.device) -> None:
    """Logits that depend on a node's token and depth, sampled and not, with penalties on the path's tokens."""
    vocab, width, levels = 120, 3, 3
    rules = Rules(
        (Sampling(temperature=0.0), Sampling(temperature=0.8, seed=9), Sampling(temperature=1.3, top_p=0.8, seed=2**40),
         Sampling(temperature=0.7, presence_penalty=1.5, seed=4)),
        ((5, 6, 7), (8, 9, 1, 4), (3, 3, 3, 3, 8), (9, 1, 5, 77, 12, 12)),
    )  # fmt: skip
    sessions = len(rules.samplings)
    table = np.random.default_rng(0).normal(size=(levels, vocab, vocab)).astype(np.float32) * 2
    coupling = rules.coupling(vocab)
    branches = [
        Branch(
            DraftSession(i, list(tokens), 3, rules.samplings[i]), Expansion(width=width, budget=11, max_depth=levels)
        )
        for i, tokens in enumerate(rules.histories)
    ]
    for depth in range(levels):
        last = [branch.session.tokens[-1:] if depth == 0 else [branch.expansion.token(n) for n in
                branch.expansion.frontier] for branch in branches]  # fmt: skip
        coupling.extend(np.concatenate([table[depth, tokens] for tokens in last]), branches, width)

    def integers(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    tensors, logits_of = rules.tensors(vocab, device), torch.from_numpy(table).to(device)
    trees, rows = draft_trees(sessions, width, device), frontier_rows(sessions, width, levels, device)
    workspace = draft_top_k_workspace(sessions * width, vocab, width, device)
    limits = integers([[11, levels]] * sessions)
    lengths, line = integers([len(tokens) for tokens in rules.histories]), torch.arange(sessions, device=device).int()
    scored: FrontierRows | None = None
    for depth in range(levels):
        each = 1 if scored is None else width
        if scored is None:
            tokens, logit_rows, paths = integers([tokens[-1] for tokens in rules.histories]), line, rows[0].paths
        else:
            tokens, logit_rows, paths = scored.token_ids, scored.logit_rows, scored.paths
        found = [torch.zeros(sessions * each, width, dtype=dtype, device=device) for dtype in
                 (torch.int32, torch.float32, torch.float32)]  # fmt: skip
        draft_top_k(
            logits_of[depth, tokens.long()], logit_rows, (lengths - 1 + depth).repeat_interleave(each),
            line.repeat_interleave(each), paths, integers([depth] * (sessions * each)), rows[0].all_places, tensors,
            None, workspace, *found,
        )  # fmt: skip
        following = rows[depth] if depth + 1 < levels else None
        draft_expand(*found, scored, limits, depth + 1, None, trees, following)
        scored = following
    for session, branch in enumerate(branches):
        tree, expected = finished(trees, session), branch.expansion.tree()
        assert (tree.token_ids, tree.parents) == (expected.token_ids, expected.parents)
        np.testing.assert_allclose(tree.log_probs, expected.log_probs, atol=1e-4)
