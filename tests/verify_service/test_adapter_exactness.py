"""A request with a LoRA adapter, or without, gets the same tokens alone, beside others, with trees, from any slot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.adapter_names import adapter_id
from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter, read_adapter
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.lora_adapters import write_adapter
from support.request_mix import TOKENS
from support.verify_loop import LoopRunner, OracleTrees, RandomTrees, Target, running_loop
from verify_service.core.adapters import Adapter
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams

CONFIG = EngineConfig(num_pages=120, page_size=16, max_running=8, prefill_chunk=24, max_adapters=3, adaptive=False)
NAMES = ("", "red", "green", "blue")
PROMPTS = [tuple((7 * i + 3 * j) % 500 + 3 for j in range(20 + 5 * i)) for i in range(3)]


@pytest.fixture(scope="module")
def adapters(tiny_model: Path, model: CausalLM, tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoraAdapter]:
    folder = tmp_path_factory.mktemp("adapters")
    options = {"red": {"rank": 8}, "green": {"rank": 16, "targets": ("q_proj", "down_proj")}, "blue": {"rank": 3}}
    return {
        name: read_adapter(
            write_adapter(folder / name, tiny_model, seed=seed, strength=0.7, **each), model.config  # type: ignore[arg-type]
        )
        for seed, (name, each) in enumerate(options.items())
    }  # fmt: skip


def install(runner: LoopRunner, name: str, adapter: LoraAdapter) -> Adapter:
    identity = adapter_id(name, adapter.fingerprint)
    return runner.loop.adapters.install(name, f"/{name}", lambda: (identity, adapter))


def requests(first_id: int = 0) -> list[GenerationRequest]:
    """Each prompt with each adapter and without, cold and warm."""
    return [
        GenerationRequest(
            RequestKey(1, first_id + number),
            prompt,
            arrival=0.0,
            sampling=SamplingParams(seed=number, temperature=0.8 * (number % 2), max_tokens=TOKENS, logprobs=2),
            adapter_id=name,
        )
        for number, (prompt, name) in enumerate((prompt, name) for prompt in PROMPTS for name in NAMES)
    ]


Told = tuple[tuple[int, ...], object]


def told(runner: LoopRunner, asked: list[GenerationRequest], concurrency: int) -> list[Told]:
    return [(answer.token_ids, answer.logprobs) for answer in runner.run(asked, concurrency)]


def alone(target: Target, adapters: dict[str, LoraAdapter], asked: list[GenerationRequest]) -> list[Told]:
    """One at a time, in an engine that holds this adapter alone, or has no room for any."""
    found: dict[RequestKey, Told] = {}
    for name in NAMES:
        own = [request for request in asked if request.adapter_id == name]
        config = replace(CONFIG, max_adapters=1 if name else 0, prefix_cache=False)
        with running_loop(target, config) as runner:
            if name:
                install(runner, name, adapters[name])
            found |= dict(zip((each.key for each in own), told(runner, own, 1), strict=True))
    return [found[request.key] for request in asked]


@pytest.fixture(scope="module")
def expected(model: CausalLM, adapters: dict[str, LoraAdapter]) -> list[Told]:
    return alone(model, adapters, requests())


def test_adapters_say_something_of_their_own(expected: list[Told]) -> None:
    for index in range(0, len(expected), len(NAMES)):
        assert len({tokens for tokens, _ in expected[index : index + len(NAMES)]}) == len(NAMES)


@pytest.fixture(params=["random", "oracle", "none"])
def runner(
    request: pytest.FixtureRequest, target: Target, adapters: dict[str, LoraAdapter], expected: list[Told]
) -> Iterator[LoopRunner]:
    asked = requests()
    texts = {one.key: (*one.prompt_token_ids, *told[0]) for one, told in zip(asked, expected, strict=True)}
    drafts = {"random": RandomTrees(512), "oracle": OracleTrees(texts, 512), "none": None}[request.param]
    with running_loop(target, CONFIG, drafts) as running:
        for name in ("blue", "red", "green"):
            install(running, name, adapters[name])
        yield running


def test_company_and_trees_change_no_token(runner: LoopRunner, expected: list[Told]) -> None:
    assert told(runner, requests(), 12) == expected


def test_requests_that_are_put_off_come_back_with_their_adapters(
    model: CausalLM, adapters: dict[str, LoraAdapter], expected: list[Told]
) -> None:
    with running_loop(model, replace(CONFIG, num_pages=10)) as runner:
        for name, adapter in adapters.items():
            install(runner, name, adapter)
        assert told(runner, requests(), 12) == expected
        assert runner.loop.state().preemptions > 0


def test_the_engine_of_a_gpu_does_as_well(twins: Target, adapters: dict[str, LoraAdapter]) -> None:
    """By the ops' twins: trees, steps launched ahead, slots that are emptied and filled."""
    asked = [replace(one, sampling=replace(one.sampling, max_tokens=8)) for one in requests()[:4]]
    expected = alone(twins, adapters, asked)
    assert len({tokens for tokens, _ in expected[:4]}) == 4
    texts = {one.key: (*one.prompt_token_ids, *told[0]) for one, told in zip(asked, expected, strict=True)}
    with running_loop(twins, CONFIG, OracleTrees(texts, 512)) as runner:
        for name in ("green", "blue", "red"):
            install(runner, name, adapters[name])
        assert told(runner, asked, 4) == expected
        runner.loop.adapters.remove("green").result(30)
        install(runner, "green", adapters["green"])
        assert told(runner, asked[2:3], 1) == expected[2:3]


def test_the_cache_is_each_adapters_own(
    model: CausalLM, adapters: dict[str, LoraAdapter], expected: list[Told]
) -> None:
    with running_loop(model, CONFIG) as runner:
        for name, adapter in adapters.items():
            install(runner, name, adapter)
        assert told(runner, requests(), 1) == expected
        cold = runner.loop.state().prefix_hit_tokens
        assert cold == 0
        assert told(runner, requests(100), 3) == expected
        assert runner.loop.state().prefix_hit_tokens > 0


def test_another_content_under_a_name_finds_nothing_in_the_cache(
    model: CausalLM, adapters: dict[str, LoraAdapter], expected: list[Told]
) -> None:
    """A name is unloaded and given to other weights, over and over: answers are those of the weights."""
    asked = requests()
    red, green = (replace(asked[NAMES.index(name)], adapter_id="x") for name in ("red", "green"))
    with running_loop(model, replace(CONFIG, max_adapters=1)) as runner:
        for turn in range(4):
            name, one = ("red", red) if turn % 2 == 0 else ("green", green)
            install(runner, "x", adapters[name])
            again = replace(one, key=RequestKey(1, 1000 + turn))
            assert told(runner, [again], 1) == [expected[NAMES.index(name)]]
            runner.loop.adapters.remove("x").result(30)


def test_adapters_come_and_go_beside_running_requests(
    model: CausalLM, adapters: dict[str, LoraAdapter], expected: list[Told]
) -> None:
    """A hundred times, while others run with an adapter that stays, and without."""
    stop = threading.Event()
    rounds: list[int] = []

    def change() -> None:
        while not stop.is_set() or len(rounds) < 100:
            install(runner, "green", adapters["green"])
            install(runner, "blue", adapters["blue"])
            for name in ("green", "blue"):
                runner.loop.adapters.remove(name).result(30)
            rounds.append(len(rounds))

    with running_loop(model, CONFIG) as runner:
        install(runner, "red", adapters["red"])
        changing = threading.Thread(target=change)
        changing.start()
        try:
            staying = [number for number, one in enumerate(requests()) if one.adapter_id in ("", "red")]
            for turn in range(3):
                asked = requests(100 * turn)
                found = told(runner, [asked[number] for number in staying], 4)
                assert found == [expected[number] for number in staying]
        finally:
            stop.set()
            changing.join()
    assert len(rounds) >= 100


def test_an_adapter_in_use_stays_until_its_requests_end(
    model: CausalLM, adapters: dict[str, LoraAdapter], expected: list[Told]
) -> None:
    one = requests()[1]
    assert one.adapter_id == "red"
    with running_loop(model, CONFIG) as runner:
        install(runner, "red", adapters["red"])
        runner.loop.submit(one)
        runner.wait_for(lambda: one.key in runner.answers)
        gone = runner.loop.adapters.remove("red")
        late = replace(one, key=RequestKey(1, 500))
        runner.loop.submit(late)
        runner.wait_for(lambda: runner.finished(late.key) and runner.finished(one.key))
        gone.result(30)
        assert (runner.answers[one.key].token_ids, runner.answers[one.key].logprobs) == expected[1]
        refused = runner.answers[late.key].last
        assert refused.finish_reason is FinishReason.ERROR and isinstance(refused.error, NotFoundError)
        with pytest.raises(NotFoundError, match="no adapter 'red' is loaded"):
            runner.loop.adapters.remove("red").result(30)


def test_names_and_slots_are_given_once(model: CausalLM, adapters: dict[str, LoraAdapter]) -> None:
    with running_loop(model, replace(CONFIG, max_adapters=1)) as runner:
        with pytest.raises(RuntimeError, match="unreadable"):
            runner.loop.adapters.install("red", "/red", _unreadable)
        install(runner, "red", adapters["red"])
        with pytest.raises(InvalidArgumentError, match="'red' is loaded"):
            install(runner, "red", adapters["red"])
        with pytest.raises(ResourceExhaustedError, match="1 adapters are loaded, which is the limit"):
            install(runner, "green", adapters["green"])


def _unreadable() -> tuple[str, LoraAdapter]:
    raise RuntimeError("unreadable")
