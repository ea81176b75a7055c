"""States of sequences: those of a plain pass, whichever pass they were had in, and as many as there was time for."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from training.common.mixture_model import MixtureLM
from training.common.model import CausalLM, initialise
from training.common.model_shape import MixtureShape, ModelShape
from training.demo_models import states as module
from training.demo_models.states import BOUNDARIES, chosen_of, lengths_of, room_for_states, states_of
from training.demo_models.tool_use.head import MemoryFeatures, first_of
from training.demo_models.tool_use.learn import Answered


def dense() -> CausalLM:
    return CausalLM(ModelShape(320, 64, 8, 2, 1, 64, 64), torch.float32)


def mixture() -> CausalLM:
    return MixtureLM(MixtureShape(320, 64, 8, 2, 1, 64, 32, experts=4, experts_per_token=2), torch.float32)


def stirred(model: CausalLM) -> CausalLM:
    """With weights of which none is zero."""
    initialise(model, 1)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.requires_grad_(False).parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    return model


def plain(model: CausalLM, ids: Tensor) -> Tensor:
    """States at all boundaries of one sequence alone, float32 [n, boundaries * hidden]."""
    outputs: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda _layer, _given, out: outputs.append(out)) for layer in model.layers]
    last = model.hidden(ids[None])
    for hook in hooks:
        hook.remove()
    return torch.cat([*(outputs[layer - 1][0] for layer in BOUNDARIES[:-1]), last[0]], dim=-1)


def said_by_chance(count: int) -> Answered:
    choose = np.random.default_rng(3)
    prompts = [choose.integers(0, 320, choose.integers(1, 40)).astype(np.uint16) for _ in range(count)]
    answers = [choose.integers(0, 320, choose.integers(1, 9)).tolist() for _ in range(count)]
    return Answered(prompts, answers, [index % 2 == 0 for index in range(count)])


@pytest.mark.parametrize("make", [dense, mixture])
def test_states_are_those_of_a_plain_pass(make: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_PASS_TOKENS", 100)  # several passes
    model, said = stirred(make()), said_by_chance(14)
    found = states_of(model, said)
    assert len(found.parts) > 3 and all(part.dtype == torch.bfloat16 for part in found.parts)
    source = MemoryFeatures(tmp_path, found)
    assert source.hidden_size == 64 and list(source.lengths) == lengths_of(said)
    order = [5, *range(14)]
    for index, sequence in zip(order, source.batch(order), strict=True):
        ids = torch.tensor([*said.prompts[index].tolist(), *said.answers[index]])
        assert torch.equal(sequence.token_ids, ids)
        assert sequence.produced.tolist() == [place >= len(said.prompts[index]) for place in range(len(ids))]
        assert sequence.category == ("tools and JSON" if said.of_tools[index] else "conversation")
        torch.testing.assert_close(sequence.states.float(), plain(model, ids), rtol=0.01, atol=1e-3)
        assert torch.equal(source[index].states, sequence.states)
    assert len(source.asked_at) == 1
    assert sum(part.nbytes for part in found.parts) == sum(lengths_of(said)) * len(BOUNDARIES) * 64 * 2


def test_as_many_states_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_PASS_TOKENS", 100)
    model, said = stirred(dense()), said_by_chance(40)
    whole = states_of(model, said)
    asked: list[int] = []

    def twice(held: int) -> bool:
        asked.append(held)
        return len(asked) < 3

    for more, passes in ((twice, 3), (lambda _held: False, 1)):
        part = states_of(model, said, more)
        assert len(part.parts) == passes and 0 < len(part.places) < 40
        tokens = sum(lengths_of(part.answered))
        assert sum(each.nbytes for each in part.parts) == tokens * len(BOUNDARIES) * 64 * 2
        numbers = [next(n for n in range(40) if said.answers[n] is answer) for answer in part.answered.answers]
        assert numbers == sorted(numbers)
        assert all(torch.equal(part.of(at), whole.of(number)) for at, number in enumerate(numbers))
    assert asked == sorted(asked) and asked[0] > 0
    assert room_for_states(torch.device("cpu")) == float("inf")


def test_sequences_are_chosen_by_number_and_by_tokens() -> None:
    prompts = [np.arange(5, dtype=np.uint16), np.arange(30, dtype=np.uint16), np.arange(2, dtype=np.uint16)]
    said = Answered(prompts, [[9, 8], [7], [6, 5, 4]], [True, False, False])
    assert lengths_of(said) == [7, 31, 5]
    assert lengths_of(first_of(said, 38)) == [7, 31] and lengths_of(first_of(said, 37)) == [7]
    assert chosen_of(said, [2, 0]).answers == [[6, 5, 4], [9, 8]] and chosen_of(said, [2, 0]).of_tools == [False, True]


@pytest.mark.gpu
def test_states_of_a_gpu_are_fetched_by_several_threads(tmp_path: Path) -> None:
    model, said = stirred(dense()), said_by_chance(40)
    here = MemoryFeatures(tmp_path, states_of(model, said))
    room = room_for_states(torch.device("cuda"))
    found = states_of(model.to("cuda"), said, lambda held: held < room)
    assert 0 < room < float("inf") and all(part.is_cuda for part in found.parts)
    there = MemoryFeatures(tmp_path, found)
    asked = [np.random.default_rng(seed).integers(0, 40, 12).tolist() for seed in range(40)]
    with ThreadPoolExecutor(there.readers) as threads:
        for indices, batch in zip(asked, threads.map(there.batch, asked), strict=True):
            for index, sequence in zip(indices, batch, strict=True):
                assert sequence.states.device.type == "cpu" and torch.equal(sequence.token_ids, here[index].token_ids)
                torch.testing.assert_close(sequence.states.float(), here[index].states.float(), rtol=0.02, atol=0.02)
