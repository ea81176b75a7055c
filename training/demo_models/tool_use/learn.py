"""The target learns from conversations with tools, held to what it was on others; the draft model follows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.common.model import CausalLM
from training.demo_models.answers import answer_corpus, draw_prompts
from training.demo_models.data import Batch, Corpus, batches, draw_order, good_for_annealing, to_corpus
from training.demo_models.export import load
from training.demo_models.losses import distillation_loss, signed_loss
from training.demo_models.mixture import ANNEAL_LONGEST_ANSWER, ANNEAL_PASSES, PROMPT_PASSES
from training.demo_models.optim import Optimizer
from training.demo_models.prepare import Documents
from training.demo_models.progress import Curve, Progress
from training.demo_models.sampler import generate
from training.demo_models.target import mask_of
from training.demo_models.tool_use.encode import Weighted
from training.demo_models.tool_use.prepare import Prepared
from training.demo_models.tool_use.settings import Options

WARMUP = 40
STABLE = 0.3
"""Part of a stage in which the learning rate does not fall yet."""


@dataclass(slots=True)
class Pace:
    """How far a stage is, by steps or by seconds since its first one, whichever is further."""

    steps: int
    seconds: float
    began: float = 0.0

    def factor(self, step: int) -> float:
        """Of the learning rate: up over WARMUP steps, then 1, then down; 0 where the stage is over."""
        now = time.perf_counter()
        self.began = self.began or now
        left = 1 - max(step / self.steps, (now - self.began) / self.seconds)
        return max(0.0, min(1.0, (step + 1) / WARMUP, left / (1 - STABLE)))


@dataclass(frozen=True, slots=True)
class Answered:
    """What the target says: prompts and answers, ids; `of_tools` says which prompts have tools or ask for JSON."""

    prompts: list[np.ndarray]
    answers: list[list[int]]
    of_tools: list[bool]


def trainable(folder: Path, dtype: torch.dtype, device: str) -> CausalLM:
    """An exported model with float32 parameters that learns in `dtype`."""
    found = load(folder, torch.float32, device)
    model = CausalLM(found.shape, dtype).to(device)
    model.load_state_dict(found.state_dict())
    return model.requires_grad_(True)


def to_weighted_corpus(made: Weighted, device: str) -> Corpus:
    """Documents with weights of their own, on the device."""
    tokens = torch.from_numpy(made.tokens.view(np.int16)).to(device)
    return Corpus(tokens, torch.from_numpy(made.weights).to(device), made.lengths)


def joined(first: Corpus, second: Corpus) -> Corpus:
    """The documents of both."""
    return Corpus(
        torch.cat((first.tokens, second.tokens)),
        torch.cat((first.weights, second.weights)),
        np.concatenate((first.lengths, second.lengths)),
    )


def endless(corpus: Corpus, rows: int, row_length: int, seed: int) -> Iterator[Batch]:
    """Rows of a corpus, in a new order every pass."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(corpus.lengths))
        yield from batches(corpus, order, rows, row_length, 0.0, seed)


def ordinary(options: Options, prepared: Prepared) -> Corpus:
    """Ordinary conversations in the annealing mixture, prompts weighing a quarter."""
    documents, generator = prepared.chats, np.random.default_rng(options.recipe.seed)
    keep = good_for_annealing(documents, ANNEAL_LONGEST_ANSWER)
    wanted = int(documents.lengths.astype(np.int64).sum())
    order = draw_order(documents, ANNEAL_PASSES, prepared.sources, keep, wanted, generator)
    return chosen(to_corpus(documents, 0.25, "cpu"), order, options.device)


def chosen(corpus: Corpus, order: np.ndarray, device: str) -> Corpus:
    """These documents of a corpus, some perhaps more than once."""
    lengths, starts = corpus.lengths[order], corpus.starts[order]
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    index = torch.from_numpy(within + np.repeat(starts, lengths))
    return Corpus(corpus.tokens[index].to(device), corpus.weights[index].to(device), lengths)


class TargetLesson:
    """Cross-entropy on conversations with tools; on ordinary ones the divergence from what the teacher says."""

    def __init__(self, options: Options, model: CausalLM, teacher: CausalLM) -> None:
        self._options, self._model, self._teacher = options, model, teacher
        self._told = compiled(options, signed_loss)
        self._held = compiled(options, distillation_loss)
        self._none = torch.zeros((), device=options.device)

    def warm_up(self) -> None:
        """Compile the step; the parameters stay as they are."""
        recipe, vocabulary = self._options.recipe, self._model.shape.vocab_size
        tool, chat = (
            meaningless(rows, recipe.row_length, vocabulary, self._options.device)
            for rows in (recipe.tool_rows, recipe.chat_rows)
        )
        torch.autograd.backward(self._losses(tool, chat)[0])
        self._model.zero_grad(set_to_none=True)

    def learn(self, progress: Progress, made: Corpus, chats: Corpus) -> None:
        """All steps, or as many as there is time for."""
        recipe = self._options.recipe
        tools = endless(made, recipe.tool_rows, recipe.row_length, recipe.seed)
        others = endless(chats, recipe.chat_rows, recipe.row_length, recipe.seed + 1)
        optimizer = Optimizer(self._model, recipe.matrix_lr, recipe.embedding_lr, recipe.weight_decay)
        tokens = (recipe.tool_rows + recipe.chat_rows) * recipe.row_length
        nats_curve, away_curve = (Curve(progress, name, tokens) for name in ("tools, nats", "chats, divergence"))
        pace = Pace(recipe.target_steps, recipe.target_seconds)
        for step in range(recipe.target_steps):
            if (factor := pace.factor(step)) == 0:
                break
            loss, nats, away = self._losses(next(tools), next(others))
            torch.autograd.backward(loss)
            optimizer.step(factor)
            nats_curve.add(step, nats)
            away_curve.add(step, away)
        progress.results["target_steps"] = step + 1

    def _losses(self, tool: Batch, chat: Batch) -> tuple[Tensor, Tensor, Tensor]:
        loss, nats = self._told(self._model, tool.tokens, tool.targets, tool.weights, mask_of(tool.documents))
        away, _ = self._held(self._model, self._teacher, chat.tokens, chat.weights, mask_of(chat.documents), self._none)
        return loss + self._options.recipe.anchor * away, nats, away.detach()


def meaningless(rows: int, row_length: int, vocabulary: int, device: str) -> Batch:
    """Rows to compile with."""
    generator = torch.Generator(device).manual_seed(0)
    tokens = torch.randint(0, vocabulary, (rows, row_length), device=device, generator=generator)
    documents = (torch.arange(row_length, device=device, dtype=torch.int32) // 100).repeat(rows, 1)
    return Batch(tokens, tokens.clone(), torch.ones(tokens.shape, device=device), documents)


def learn_draft(options: Options, progress: Progress, draft: CausalLM, target: CausalLM, answers: Corpus) -> None:
    """The draft model follows the target on the target's own answers."""
    recipe = options.recipe
    held = compiled(options, distillation_loss)
    part = torch.tensor(recipe.argmax_weight, device=options.device)
    stream = endless(answers, recipe.draft_rows, recipe.row_length, recipe.seed + 2)

    def loss_of(batch: Batch) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = held(draft, target, batch.tokens, batch.weights, mask_of(batch.documents), part)
        return found

    with progress.phase("compile draft"):
        torch.autograd.backward(loss_of(next(stream))[0])
        draft.zero_grad(set_to_none=True)
    optimizer = Optimizer(draft, recipe.draft_matrix_lr, recipe.draft_embedding_lr, 0.0)
    curve = Curve(progress, "draft, agreement", recipe.draft_rows * recipe.row_length)
    pace = Pace(recipe.draft_steps, recipe.draft_seconds)
    with progress.phase("draft"):
        for step in range(recipe.draft_steps):
            if (factor := pace.factor(step)) == 0:
                break
            loss, agreement = loss_of(next(stream))
            torch.autograd.backward(loss)
            optimizer.step(factor)
            curve.add(step, agreement)
        progress.results["draft_steps"] = step + 1


def compiled(options: Options, loss: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The loss, compiled where that is wanted."""
    return torch.compile(loss, dynamic=False) if options.compile else loss


def answer(
    options: Options, target: CausalLM, prepared: Prepared, stops: list[int], count: int, seconds: float, tools: float
) -> Answered:
    """The target's answers to ordinary prompts and to those with tools, `tools` of all, until the time is up.

    Of eight, six are greedy, one after a random start, one at temperature 0.8.
    """
    recipe = options.recipe
    began = time.perf_counter()
    longest = recipe.head_row_length - recipe.answer_tokens
    asked = Documents.concatenate([prepared.chats, prepared.prompts])
    found = Answered([], [], [])
    for number in range(-(-count // recipe.answers_a_time)):
        size = min(recipe.answers_a_time, count - number * recipe.answers_a_time)
        seed = recipe.seed * 100 + number
        of_tools = tool_prompts(prepared.made, round(size * tools), longest, seed)
        others = draw_prompts(asked, PROMPT_PASSES, prepared.sources, size - len(of_tools), longest, seed)
        prompts = [*of_tools, *others]
        starts = np.random.default_rng(seed).integers(1, 16, len(prompts)).tolist()
        hot = [(0, 0, 0, 0, 0, 0, start, 1024)[index % 8] for index, start in enumerate(starts)]
        warmth = [0.8 if tokens else 0.0 for tokens in hot]
        answers = generate(target, prompts, warmth, recipe.answer_tokens, stops, seed, hot_tokens=hot)
        found.prompts.extend(prompts)
        found.answers.extend(answers)
        found.of_tools.extend([True] * len(of_tools) + [False] * len(others))
        if time.perf_counter() - began > seconds:
            break
    return found


def tool_prompts(made: Weighted, count: int, longest: int, seed: int) -> list[np.ndarray]:
    """Conversations cut where something that is learnt begins: an answer, or a value where a grammar forces its key."""
    generator = np.random.default_rng(seed)
    ends = np.cumsum(made.lengths)
    prompts: list[np.ndarray] = []
    for index in generator.permutation(len(made.lengths)).tolist():
        if len(prompts) == count:
            break
        begin, end = int(ends[index] - made.lengths[index]), int(ends[index])
        told = made.weights[begin:end] > 0
        starts = np.flatnonzero(told[1:] & ~told[:-1]) + 1
        cut = int(generator.choice(starts))
        if cut <= longest:
            prompts.append(made.tokens[begin : begin + cut])
    return prompts


def to_answer_corpus(answered: Answered, device: str) -> Corpus:
    """Answers to learn from, prompts weighing a fiftieth."""
    weights = [[1.0] * len(answer) for answer in answered.answers]
    return answer_corpus(answered.prompts, answered.answers, weights, device, 0.02)
