"""Cached, batched, padded sampling equals the plain forward pass; acceptance arithmetic; losses."""

import pytest
import torch

from training.common.model import CausalLM
from training.demo_models import sampler
from training.demo_models.answers import repeated_positions
from training.demo_models.evaluate import agreement, chain_steps
from training.demo_models.losses import distillation_loss, signed_loss
from training.demo_models.prepare import repeats_ngram
from training.demo_models.sampler import generate

PROMPTS = [[5, 9, 30], [7, 8, 9, 10, 11, 12, 13, 14, 40, 41], [6], [100, 200, 300, 50, 60]]


def test_greedy_answers_equal_plain_decoding(model: CausalLM) -> None:
    answers = generate(model, PROMPTS, [0.0] * 4, 12, [3], seed=0)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        tokens = list(prompt)
        for token in answer:
            assert int(model.float_logits(model.hidden(torch.tensor([tokens])))[0, -1].argmax()) == token
            tokens.append(token)
        assert answer[-1] == 3 or len(answer) == 12


@pytest.mark.parametrize("rows_at_once", [1, 3])
def test_prompts_of_a_group_pass_the_model_in_parts(
    model: CausalLM, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[5 + i + j for j in range(1 + 3 * i % 11)] for i in range(17)]
    whole = generate(model, prompts, [0.0] * 17, 6, [3], seed=0)
    passed: list[int] = []
    model.layers[0].mlp.register_forward_pre_hook(lambda _, inputs: passed.append(inputs[0].shape[:-1].numel()))
    monkeypatch.setattr(sampler, "PASS_TOKENS", 11 * rows_at_once)
    assert generate(model, prompts, [0.0] * 17, 6, [3], seed=0) == whole
    assert max(passed) <= max(17, 11 * rows_at_once)  # a step of decoding is a token a row
    assert sum(passed[: -(-17 // rows_at_once)]) < 17 * 11  # and prompts are padded to their part's longest


def test_temperature_draws_and_repeats_by_seed(model: CausalLM) -> None:
    first = generate(model, PROMPTS, [0.8] * 4, 12, [], seed=1)
    assert first == generate(model, PROMPTS, [0.8] * 4, 12, [], seed=1)
    assert first != generate(model, PROMPTS, [0.8] * 4, 12, [], seed=2)


def test_the_model_agrees_with_itself(model: CausalLM) -> None:
    answers = generate(model, PROMPTS, [0.0] * 4, 12, [], seed=0)
    assert all(all(hits) for hits in agreement(model, PROMPTS, answers))


def test_chain_steps() -> None:
    assert chain_steps([True] * 10, 4) == 2
    assert chain_steps([False] * 5, 4) == 5
    assert chain_steps([True, False, True, True, False, True], 4) == 3


def test_repeats() -> None:
    assert repeats_ngram([1, 2, 3] * 8, 4) and not repeats_ngram(list(range(40)), 4)
    assert repeated_positions([1, 2, 3, 1, 2, 3], 2) == [False, False, False, False, True, True]


def test_unlikelihood_pushes_a_token_down(model: CausalLM) -> None:
    model.requires_grad_(True)
    tokens = torch.tensor([[5, 9, 30, 31]])
    weights = torch.tensor([[0.0, 0.0, -1.0, 0.0]])
    targets = torch.tensor([[9, 30, 31, 0]])
    loss, _ = signed_loss(model, tokens, targets, weights, None)
    loss.backward()
    before = model(tokens).log_softmax(-1)[0, 2, 31]
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.1)
    after = model(tokens).log_softmax(-1)[0, 2, 31]
    assert float(after.detach()) < float(before.detach())


def test_distillation_loss_vanishes_for_the_target_itself(model: CausalLM) -> None:
    tokens = torch.tensor([[5, 9, 30, 31]])
    loss, share = distillation_loss(model, model, tokens, torch.ones(1, 4), None, torch.tensor(0.0))
    assert abs(float(loss.detach())) < 1e-5 and float(share) == 1.0
