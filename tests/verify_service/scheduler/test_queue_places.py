"""Places of a full queue go to tenants below their share; what has started keeps its place."""

from __future__ import annotations

import pytest

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import ResourceExhaustedError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.verify_loop import LoopRunner, admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.scheduler.fair_share import FairShare
from verify_service.scheduler.queue_places import LEAST_RETRY_SECONDS, QueuePlaces

CONFIG = EngineConfig(num_pages=64, page_size=16, max_running=2, max_queued=6)


def test_places_are_shared_only_while_they_are_all_taken() -> None:
    tenants = FairShare()
    places = QueuePlaces(3, tenants)
    states = [admitted(CONFIG, [3], request_id=i, tenant="heavy") for i in range(3)]
    for state in states:
        assert places.displace(state) is None
        tenants.enter(state)
    assert places.full
    with pytest.raises(ResourceExhaustedError, match="0 requests run and 3 wait") as refused:
        places.displace(admitted(CONFIG, [3], request_id=3, tenant="heavy"))
    assert refused.value.retry_after == LEAST_RETRY_SECONDS
    assert places.displace(admitted(CONFIG, [3], request_id=4, tenant="light")) is states[2]
    assert places.displaced == 1


def ask(tenant: str, request_id: int, output: tuple[int, ...] = ()) -> GenerationRequest:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    key = RequestKey(0, request_id)
    return GenerationRequest(key, (5, 6, 7 + request_id), 0.0, output, sampling=params, tenant=tenant)


@pytest.mark.parametrize("fair", [True, False])
def test_a_crowd_of_one_tenant_leaves_places_to_another(model: CausalLM, fair: bool) -> None:
    config = EngineConfig(num_pages=64, page_size=16, max_running=2, max_queued=6, fair=fair)
    runner = LoopRunner(model, config)
    requests = [ask("heavy", i) for i in range(8)] + [ask("light", 100 + i) for i in range(6)]
    for request in requests:
        runner.loop.submit(request)
    runner.loop.start()
    try:
        runner.wait_for(lambda: all(runner.finished(request.key) for request in requests))
        refused = [request for request in requests if runner.answers[request.key].finish_reason is FinishReason.ERROR]
        assert len(refused) == 6
        by_tenant = {name: sum(each.tenant == name for each in refused) for name in ("heavy", "light")}
        assert by_tenant == ({"heavy": 4, "light": 2} if fair else {"heavy": 0, "light": 6})
        for request in refused:
            error = runner.answers[request.key].last.error
            assert isinstance(error, ResourceExhaustedError)
            assert error.retry_after is not None
            assert not runner.answers[request.key].token_ids
        assert runner.loop.state().displaced == (4 if fair else 0)
    finally:
        runner.loop.stop()


def test_a_resumed_request_keeps_its_place(model: CausalLM) -> None:
    runner = LoopRunner(model, CONFIG)
    requests = [ask("heavy", i, output=(9, 9)) for i in range(8)] + [ask("light", 100)]
    for request in requests:
        runner.loop.submit(request)
    runner.loop.start()
    try:
        runner.wait_for(lambda: all(runner.finished(request.key) for request in requests))
        reasons = [runner.answers[request.key].finish_reason for request in requests]
        assert reasons == [FinishReason.LENGTH] * 8 + [FinishReason.ERROR]
    finally:
        runner.loop.stop()
