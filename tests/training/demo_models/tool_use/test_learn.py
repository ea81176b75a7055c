"""Stages that go on with the demo models: their pace, their prompts, their states."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from training.common.model import CausalLM
from training.demo_models.data import Corpus
from training.demo_models.progress import Progress
from training.demo_models.tool_use.conversations import BARE, CALL, Maker
from training.demo_models.tool_use.encode import ToolEncoder
from training.demo_models.tool_use.learn import WARMUP, Pace, TargetLesson, chosen, tool_prompts
from training.demo_models.tool_use.settings import parse


def test_the_pace_rises_holds_and_falls() -> None:
    pace = Pace(1000, 3600.0)
    assert pace.factor(0) == pytest.approx(1 / WARMUP)
    assert pace.factor(WARMUP) == 1.0
    assert 0 < pace.factor(990) < 0.02
    assert pace.factor(1000) == 0.0
    late = Pace(1000, 1e-9)
    late.factor(0)
    assert late.factor(1) == 0.0


def test_tool_prompts_end_where_something_is_to_be_said(demo_model: Path) -> None:
    encoder = ToolEncoder(demo_model / "tokenizer.json", 1500)
    maker = Maker.of_training([("Hello", "Hi.")])
    choose = Random(7)
    for kind, ends in ((CALL, ("<|assistant|>",)), (BARE, ('"', '{"'))):
        made = encoder.encode([maker.make(choose, kind) for _ in range(20)])
        prompts = tool_prompts(made, 12, 1500, 0)
        assert len(prompts) == 12
        for prompt in prompts:
            text = encoder.tokenizer.decode(prompt.tolist(), skip_special_tokens=False)
            assert text.startswith("<|begin|>") and "<|assistant|>" in text
            assert kind == BARE or text.endswith(ends)
        assert not tool_prompts(made, 12, 3, 0)


def test_chosen_documents_are_whole() -> None:
    corpus = Corpus(torch.arange(10, dtype=torch.int16), torch.ones(10, dtype=torch.float16), np.array([3, 5, 2]))
    found = chosen(corpus, np.array([2, 0, 2]), "cpu")
    assert found.tokens.tolist() == [8, 9, 0, 1, 2, 8, 9] and found.lengths.tolist() == [2, 3, 2]


def test_a_lesson_teaches_the_model_and_not_its_teacher(model: CausalLM) -> None:
    folders = [flag for name in ("models", "corpus", "eval-prompts", "work", "out") for flag in (f"--{name}", "x")]
    small = ["--device", "cpu", "--no-compile", "--row-length", "128", "--tool-rows", "1", "--chat-rows", "1"]
    fast = ["--matrix-lr", "0.1", "--embedding-lr", "0.1"]
    options = parse([*folders, *small, *fast, "--target-steps", "8", "--target-seconds", "3600"])
    pupil = CausalLM(model.shape, torch.float32)
    pupil.load_state_dict(model.state_dict())
    tokens = torch.arange(1, 61, dtype=torch.int16)
    made = Corpus(tokens, torch.ones(60, dtype=torch.float16), np.array([60]))
    chats = Corpus(tokens.flip(0), torch.ones(60, dtype=torch.float16), np.array([60]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lesson, progress = TargetLesson(options, pupil, model), Progress()
    lesson.warm_up()
    assert all(parameter.grad is None for parameter in pupil.parameters())

    def nats() -> float:
        with torch.no_grad():
            logits = pupil(tokens.long()[None, :-1])[0]
        return float(torch.nn.functional.cross_entropy(logits, tokens.long()[1:]))

    at_first = nats()
    lesson.learn(progress, made, chats)
    assert nats() < at_first - 0.2
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert progress.results["target_steps"] == 8
