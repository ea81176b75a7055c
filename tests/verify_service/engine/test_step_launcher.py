"""What is done behind the launch of a step, and in which order."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace

import pytest

from slipstream_kernels.device_tree import DeviceTree
from support.verify_loop import LoopRunner, Target
from verify_service.core.engine_config import EngineConfig
from verify_service.engine.step_launcher import StepLauncher

CONFIG = EngineConfig(num_pages=64, page_size=4, adaptive=False)
OWN = ["read_trees", "enqueue_drafts"]
LATE = SimpleNamespace(tree=DeviceTree(None, 0, 2, 2))


@pytest.fixture
def journal() -> list[str]:
    return []


@pytest.fixture
def launcher(target: Target, journal: list[str]) -> StepLauncher:
    launcher = LoopRunner(target, CONFIG).loop._launcher
    for name in OWN:
        setattr(launcher._steps, name, partial(journal.append, name))
    launcher._tell_drafters = partial(journal.append, "drafters")
    launcher._deliver = lambda: journal.append("clients") or 1 / 0  # which costs the step nothing
    return launcher


def test_clients_are_told_before_trees_are_waited_for(
    launcher: StepLauncher, journal: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        for item, promised in ((LATE, False), (SimpleNamespace(tree=None), False), (LATE, True)):
            launcher._work_behind_launch([item], promised=promised)
    assert journal == ["clients", *OWN, *OWN, "clients", "read_trees", "drafters", "enqueue_drafts"]


def test_what_a_launch_ahead_has_left_is_done_once_the_step_before_is_decided(
    launcher: StepLauncher, journal: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    launcher._steps._ahead = [LATE]
    with caplog.at_level(logging.CRITICAL):
        launcher.finish_ahead()
        launcher.finish_ahead()
    assert journal == ["clients", "read_trees", "drafters", "enqueue_drafts"]
