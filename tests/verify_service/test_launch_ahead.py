"""Steps that are launched with trees of a device before the step is decided which these are drafted behind.

Over torch twins of the GPU's kernels, with a head in the process. Requests come and go, of several kinds and with many
settings; the tokens are those of one request at a time without a drafter.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support.answering_drafter import Drafter, write_drafter
from support.in_process_drafter import CONFIG, served
from support.request_mix import Expected, assert_equal, some_requests
from support.verify_loop import LoopRunner, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.engine.step_queue import StepQueue

SEEDS = [0, 28, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts launches ahead: those with trees, and of them those beside rows of prompts."""
    counts: Counter[str] = Counter()
    launch = StepQueue.launch

    def counted(queue: StepQueue, items: Sequence[ScheduledRequest], *, ahead: bool = False) -> None:
        if ahead and any(item.tree is not None for item in items):
            counts["trees"] += 1
            counts["beside prompts"] += any(item.count > 1 for item in items)
        launch(queue, items, ahead=ahead)

    monkeypatch.setattr(StepQueue, "launch", counted)
    return counts


def mixed(pick: random.Random) -> list[GenerationRequest]:
    found: list[GenerationRequest] = []
    for turn in range(4):
        for one in some_requests(pick.choice([0.0, 0.8]), pick.choice([11, 24, 40])):
            sampling = replace(one.sampling, logprobs=pick.choice([None, None, 2]), seed=pick.randrange(1000))
            found.append(replace(one, key=RequestKey(turn, one.key.request_id), sampling=sampling))
    pick.shuffle(found)
    return found


def config_of(pick: random.Random) -> EngineConfig:
    page_size, running = pick.choice([1, 4, 16]), pick.choice([2, 4, 6])
    return replace(
        CONFIG,
        page_size=page_size,
        num_pages=pick.choice([260, 700]) // page_size,
        prefill_chunk=pick.choice([7, 30, 64]),
        max_running=running,
        step_nodes=5 * running,
        prefix_cache=pick.random() < 0.5,
    )


def plain(twins: Target, requests: Sequence[GenerationRequest]) -> list[Expected]:
    with running_loop(twins, CONFIG) as runner:
        answers = runner.run(requests, 1)
    expected: list[Expected] = []
    for answer in answers:
        assert answer.finish_reason is not None
        expected.append((answer.token_ids, answer.logprobs, answer.finish_reason))
    return expected


def in_turn(runner: LoopRunner, requests: Sequence[GenerationRequest], clients: int) -> None:
    """Each of so many clients sends its next request once the last one is answered."""

    def client(own: Sequence[GenerationRequest]) -> None:
        for request in own:
            runner.run([request])

    threads = [threading.Thread(target=client, args=(requests[first::clients],)) for first in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_are_plain_decodings(
    twins: Target, tiny_model: Path, tmp_path: Path, seed: int, ahead: Counter[str]
) -> None:
    pick = random.Random(seed)
    config, requests = config_of(pick), mixed(pick)
    expected = plain(twins, requests)
    drafter = Drafter(write_drafter(tmp_path / "head"), tiny_model)
    drafter.answers = [one.prompt_token_ids + each[0] for one, each in zip(requests, expected, strict=True)]
    with served(twins, drafter, config=config) as (runner, _, _, _):
        in_turn(runner, requests, config.max_running + 1)
        assert_equal([runner.answers[one.key] for one in requests], expected)
        assert runner.loop.state().accepted_tokens > 20
    assert ahead["trees"] > 0
    assert ahead["beside prompts"] > 0


def test_a_prompt_of_one_row_a_step_is_computed_beside_trees(
    twins: Target, tiny_model: Path, tmp_path: Path, ahead: Counter[str]
) -> None:
    config = replace(CONFIG, prefill_chunk=1)
    long, short = some_requests(0.0, 200)[2], some_requests(0.0, 4)[0]
    long = replace(long, prompt_token_ids=long.prompt_token_ids[:9])
    short = replace(short, prompt_token_ids=short.prompt_token_ids[:9])
    (tokens, *_), _ = plain(twins, [long, short])
    drafter = Drafter(write_drafter(tmp_path / "head"), tiny_model)
    drafter.answers = [long.prompt_token_ids + tokens]
    with served(twins, drafter, config=config) as (runner, _, _, _):
        runner.loop.submit(long)
        runner.wait_for(lambda: ahead["trees"] > 2)
        runner.run([short])
        assert not runner.finished(long.key)
        runner.loop.cancel(long.key)
        runner.wait_for(lambda: runner.finished(long.key))
