"""Tokens are those of plain decoding, whoever rests and whenever, also where drafters learn of steps late."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count

import pytest

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.request_mix import some_requests
from support.verify_loop import RandomTrees, running_loop
from verify_service.core.draft_source import Committed
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import RequestKey
from verify_service.speculation import gate, tree_sizing
from verify_service.speculation.goodput import DepthCandidate, GoodputOptimizer

LOOP = EngineConfig(num_pages=256, page_size=4, max_running=6)


class Late(RandomTrees):
    """Counts requests that it is told of several steps at once."""

    late = 0

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        self.late += sum(len(each.token_ids) > 3 for each in commits)
        return super().commit(commits)


@pytest.mark.parametrize("period", [3, 7])
def test_tokens_do_not_depend_on_who_rests(model: CausalLM, period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count()

    def choose_depths(self: GoodputOptimizer, bidders: Sequence[DepthCandidate], *_: object, **__: object) -> list[int]:
        self.is_profitable = next(steps) // period % 2 == 0
        self.gate.step(profitable=self.is_profitable)
        return [min(2, bidder.max_levels) if self.is_profitable else 0 for bidder in bidders]

    monkeypatch.setattr(GoodputOptimizer, "choose_depths", choose_depths)
    monkeypatch.setattr(GoodputOptimizer, "rests", lambda *_: False)
    monkeypatch.setattr(gate, "REST_AFTER", 0)
    monkeypatch.setattr(tree_sizing, "KEPT_READY", 1)
    asked = some_requests(0.8)
    with running_loop(model, LOOP) as runner:
        plain = [(answer.token_ids, answer.finish_reason) for answer in runner.run(asked)]
    trees = Late(model.config.vocab_size)
    with running_loop(model, LOOP, trees) as runner:
        answers = runner.run(asked)
    assert [(answer.token_ids, answer.finish_reason) for answer in answers] == plain
    assert trees.trees > 5
    assert trees.late > 0
