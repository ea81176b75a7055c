"""The loop calls drafting step by step; nothing that it calls calls drafting once more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.request_mix import some_requests
from support.verify_loop import RandomTrees, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.speculation.controller import SpeculationController


def test_the_loop_alone_sequences(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[str] = []
    entered: list[tuple[str, ...]] = []

    def watched(name: str, method: Callable[..., object]) -> Callable[..., object]:
        def enter(*args: object, **options: object) -> object:
            inside.append(name)
            entered.append(tuple(inside))
            try:
                return method(*args, **options)
            finally:
                inside.pop()

        return enter

    for name, method in list(vars(SpeculationController).items()):
        if callable(method) and not name.startswith("_"):
            monkeypatch.setattr(SpeculationController, name, watched(name, method))
    with running_loop(target, EngineConfig(num_pages=128, adaptive=False), RandomTrees(512)) as runner:
        runner.run(some_requests(0.0)[:3])
    assert {"begin", "attach_trees", "observe_step", "send_commits", "end"} <= {names[0] for names in entered}
    assert [names for names in entered if len(names) > 1] == [], "drafting was entered from within drafting"
