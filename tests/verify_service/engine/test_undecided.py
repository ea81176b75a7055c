"""Logits that are no numbers end the requests they decide, by name, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import FailedPreconditionError, InternalError
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from support.host_model import HostModel
from support.models import make_tiny_model
from support.verify_loop import ScriptedTrees, Target, running_loop
from verify_service.config import VerifySettings
from verify_service.core.draft_source import DraftSource, NoDrafts
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.engine.undecided import undecided_error
from verify_service.server.model_loader import load

CONFIG = EngineConfig(num_pages=64, page_size=8, adaptive=False)
POISONED = 300
"""The token whose embedding is NaN: whoever reads it has logits of NaN from there on."""
PROMPT = tuple(range(40, 75))
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, seed=1, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def poisoned_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("poisoned") / "model", tied=False)
    poison(folder, "model.embed_tokens.weight", POISONED)
    return folder


def poison(folder: Path, name: str, row: int) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name][row] = torch.nan
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture(scope="module")
def poisoned(poisoned_folder: Path) -> CausalLM:
    return CausalLM.load(poisoned_folder, threads=1)


@pytest.fixture(params=["cpu", "device", "twins"])
def target(request: pytest.FixtureRequest, poisoned: CausalLM, poisoned_folder: Path) -> Target:
    """The CPU's engine, that of devices over the CPU's model, and that of devices over the twins of a GPU's kernels."""
    if request.param == "twins":
        from support.device_reference import twin_target  # loads triton, which must come after TRITON_INTERPRET is set

        return twin_target(poisoned_folder)
    return poisoned if request.param == "cpu" else partial(HostModel, poisoned)


def request(number: int, prompt: tuple[int, ...], params: SamplingParams = PARAMS) -> GenerationRequest:
    return GenerationRequest(RequestKey(0, number), prompt, arrival=0.0, sampling=params)


def alone(target: Target, prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
    with running_loop(target, CONFIG) as runner:
        (answer,) = runner.run([request(0, prompt, params)])
    assert answer.finish_reason is FinishReason.LENGTH
    return answer.token_ids


class Chain(ScriptedTrees):
    """Proposes the poisoned token over and over, beside a token that begins the target's own text."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        super().__init__()
        self.text = text

    def propose(self, key: RequestKey, nodes: int, depth: int) -> TokenTree | None:
        at = len(self.tokens[key]) - len(PROMPT)
        own = self.text[at : at + 1]
        return TokenTree((POISONED, POISONED, *own), (-1, 0, *[-1] * len(own)))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_only_the_request_that_reads_it_fails(temperature: float, target: Target) -> None:
    """Whoever runs beside it, and takes over its pages, has the tokens it has alone."""
    params = replace(PARAMS, temperature=temperature)
    texts = [tuple(range(first, first + 20)) for first in (60, 90, 120)]
    bad = (*PROMPT[:20], POISONED, *PROMPT[20:])
    expected = [alone(target, text, params) for text in texts]
    with running_loop(target, replace(CONFIG, num_pages=24)) as runner:
        good = [request(number, text, params) for number, text in enumerate(texts)]
        *answers, failed = runner.run([*good, request(7, bad, params)])
        again = runner.run([request(10 + number, text, params) for number, text in enumerate(texts)])
    assert [answer.token_ids for answer in answers] == expected == [answer.token_ids for answer in again]
    assert failed.finish_reason is FinishReason.ERROR and failed.token_ids == ()
    assert isinstance(failed.last.error, InternalError)
    assert failed.last.error.message == undecided_error(len(bad)).message
    assert f"position {len(bad)}" in failed.last.error.message


@pytest.mark.parametrize("trees", [Chain, NoDrafts])
def test_tokens_before_it_are_output(trees: Callable[[], DraftSource], target: Target) -> None:
    """A bias makes the target choose the poisoned token; what comes behind it cannot be decided, drafted or not."""
    biased = replace(PARAMS, logit_bias=((POISONED, 100.0),), presence_penalty=0.5)
    one_more = replace(biased, max_tokens=1)
    with running_loop(target, CONFIG, trees()) as runner:
        failed, over = runner.run([request(1, PROMPT, biased), request(2, PROMPT, one_more)])
    assert failed.token_ids == (POISONED,) == over.token_ids
    assert over.finish_reason is FinishReason.LENGTH
    assert failed.finish_reason is FinishReason.ERROR and failed.last.error is not None
    assert failed.last.error.message == undecided_error(len(PROMPT) + 1).message
    assert len(failed.logprobs) == 1


def test_a_tree_that_names_it_costs_nobody_anything(target: Target) -> None:
    text = alone(target, PROMPT, PARAMS)
    trees = Chain(text)
    with running_loop(target, CONFIG, trees) as runner:
        (answer,) = runner.run([request(0, PROMPT)])
    assert answer.token_ids == text and trees.trees


def test_pages_of_what_failed_are_not_cached(poisoned: CausalLM) -> None:
    bad = (*PROMPT[:20], POISONED, *PROMPT[20:])
    with running_loop(poisoned, CONFIG) as runner:
        for number in range(2):
            (failed,) = runner.run([request(number, bad)])
            assert failed.finish_reason is FinishReason.ERROR
            assert runner.loop.state().pages_cached == 0
            assert failed.last.usage is not None and failed.last.usage.cached_tokens == 0


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("model.embed_tokens.weight", 1),
        ("lm_head.weight", 5),
        ("model.norm.weight", 5),
        ("model.layers.1.self_attn.q_proj.weight", 5),
        ("model.layers.1.self_attn.k_proj.weight", 5),
        ("model.layers.0.mlp.gate_proj.weight", 5),
    ],
)
def test_a_model_of_what_is_no_number_is_refused_at_start(name: str, row: int, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", tied=False)
    poison(folder, name, row)
    settings = VerifySettings(model=folder, threads=1, max_running=2)
    with pytest.raises((FailedPreconditionError, CheckpointError), match=r"logits .* are not finite numbers"):
        load(settings)
