from itertools import pairwise

import pytest

from benchmarks.local_engine.local_loop import EngineConfig, Job, LoopFailedError, local_loop
from benchmarks.local_engine.synthetic_trees import SizedTrees
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.ask import wait_until

CONFIG = EngineConfig(num_pages=128, max_running=4)


@pytest.fixture(scope="module")
def model(tiny_model):
    return CausalLM.load(tiny_model)


def jobs(count, tokens=12, **options):
    return [Job((3 + index, 9, 8, 7), tokens, seed=index, **options) for index in range(count)]


def test_answers_come_in_order_whatever_the_concurrency(model):
    with local_loop(model, CONFIG) as loop:
        alone = loop.run(jobs(7, temperature=0.9), 1)
        together = loop.run(jobs(7, temperature=0.9), 3)
    assert [a.token_ids for a in alone] == [a.token_ids for a in together]
    assert len({tuple(a.token_ids) for a in alone}) > 1
    assert all(len(a.token_ids) == 12 and a.usage.completion_tokens == 12 for a in alone)


def test_no_more_run_than_asked_for(model):
    with local_loop(model, CONFIG) as loop:
        loop.run(jobs(9), 2)
        assert max(arrival.requests for arrival in loop.arrivals) == 2


def test_steps_of_decoding_requests_are_watched_and_then_cancelled(model):
    trees = SizedTrees(512)
    trees.resize(4)
    with local_loop(model, CONFIG, trees) as loop:
        with loop.decoding(jobs(3, tokens=400)):
            plain = loop.watch(5, settle=2)
        with loop.decoding(jobs(2, tokens=400, proposer="sized")):
            drafted = loop.watch(5, settle=2)
        assert loop.loop.state().running == 0
    assert [arrival.tokens for arrival in plain] == [3] * 6
    assert [arrival.drafted for arrival in drafted] == [6] * 6
    assert all(b.at > a.at for a, b in pairwise(plain))


def test_requests_that_end_early_spoil_the_measurement(model):
    def measure(loop):
        with loop.decoding(jobs(1, tokens=2)):
            assert loop.loop.wait_idle(10.0)

    with local_loop(model, CONFIG) as loop, pytest.raises(LoopFailedError, match="before the measurement"):
        measure(loop)


def test_requests_that_make_way_spoil_the_measurement(model):
    def measure(loop):
        with loop.decoding(jobs(2, tokens=100)):
            wait_until(lambda: loop.loop.state().preemptions, "nobody made way")

    config = EngineConfig(num_pages=8, max_running=2, page_size=16)
    with local_loop(model, config) as loop, pytest.raises(LoopFailedError, match="too few pages"):
        measure(loop)


def test_nothing_is_measured_of_requests_that_have_ended(model):
    def measure(loop):
        with loop.decoding(jobs(1, tokens=50)):
            loop.watch(60, timeout=60.0)

    with local_loop(model, CONFIG) as loop, pytest.raises(LoopFailedError, match="ended before the measurement"):
        measure(loop)


def test_a_request_that_cannot_begin_spoils_the_measurement(model):
    def measure(loop):
        with loop.decoding(jobs(2, tokens=400), timeout=60.0):
            pytest.fail("began")

    config = EngineConfig(num_pages=8, max_running=2, page_size=16)
    with local_loop(model, config) as loop, pytest.raises(LoopFailedError, match="before the measurement"):
        measure(loop)


def test_a_refused_request_is_an_error(model):
    with local_loop(model, CONFIG) as loop, pytest.raises(LoopFailedError, match="ERROR"):
        loop.run([Job((1, 2), 12, proposer="nobody")], 1)
