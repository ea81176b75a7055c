"""Budgets drawn at random for each step and request leave tokens alone: what the controller decides changes no bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from support.request_mix import some_requests
from support.verify_loop import OracleTrees, running_loop
from verify_service.core.acceptance import truncated
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.speculation.acceptance_model import ProposedTree
from verify_service.speculation.node_selection import NodeSelector
from verify_service.speculation.tree_sizing import TreeSizer

LOOP = EngineConfig(num_pages=256, page_size=4, max_running=6, prefill_chunk=24, step_nodes=96)


class RandomBudgets:
    """Stands in for all that decides on trees: who has one and who rests, how deep, how large, what of it is taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self._pick = random.Random(seed)
        self.drawn: set[tuple[int, int]] = set()
        """Depths and rows that were asked for."""
        budgets = self

        def depths(_: TreeSizer, states: Sequence[RequestState], running: int) -> list[int]:
            return [budgets.depth(state) for state in states]

        def rows(_: TreeSizer, state: RequestState, depth: int, running: int) -> int:
            return budgets.rows(state, depth)

        def choose(_: NodeSelector, trees: Sequence[ProposedTree], **__: object) -> list[TokenTree | None]:
            return [budgets.part(each.tree) for each in trees]

        monkeypatch.setattr(TreeSizer, "depths", depths)
        monkeypatch.setattr(TreeSizer, "rows", rows)
        monkeypatch.setattr(NodeSelector, "choose", choose)

    def depth(self, state: RequestState) -> int:
        state.draft.paused = self._pick.random() < 0.2
        if state.draft.paused or state.draft.catching_up or state.depth_left <= 0:
            return 0
        return 0 if self._pick.random() < 0.2 else self._pick.randint(1, min(12, state.depth_left))

    def rows(self, state: RequestState, depth: int) -> int:
        if depth <= 0 or state.draft.max_nodes < 2:
            return 1
        rows = self._pick.randint(2, state.draft.max_nodes)
        self.drawn.add((depth, rows))
        return rows

    def part(self, tree: TokenTree) -> TokenTree | None:
        return truncated(tree, max_nodes=self._pick.randint(1, 1 + len(tree)), max_depth=self._pick.randint(1, 12))


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_plain_decodings(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch, temperature: float, seed: int
) -> None:
    asked = some_requests(temperature)
    with running_loop(model, LOOP) as runner:
        plain = [(answer.token_ids, answer.finish_reason) for answer in runner.run(asked)]
    texts = {one.key: (*one.prompt_token_ids, *tokens) for one, (tokens, _) in zip(asked, plain, strict=True)}
    trees, budgets = OracleTrees(texts, model.config.vocab_size, seed), RandomBudgets(monkeypatch, seed)
    with running_loop(model, LOOP, trees) as runner:
        answers = runner.run(asked)
    assert [(answer.token_ids, answer.finish_reason) for answer in answers] == plain
    usages = [answer.last.usage for answer in answers]
    assert sum(usage.accepted_tokens for usage in usages if usage is not None) > 20
    assert len(budgets.drawn) > 20
