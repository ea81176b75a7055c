"""Training of the chat target: pretraining, annealing on answers, unlikelihood on its own loops."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.common.attention_masks import block_mask, dense_mask
from training.common.model import CausalLM, Mask, initialise
from training.demo_models.answers import answer_corpus, draw_prompts, repeated_positions
from training.demo_models.data import (
    Batch,
    Corpus,
    batches,
    draw_order,
    good_for_annealing,
    to_corpus,
)
from training.demo_models.losses import signed_loss
from training.demo_models.mixture import ANNEAL_LONGEST_ANSWER, ANNEAL_PASSES, PRETRAIN_PASSES, PROMPT_PASSES
from training.demo_models.optim import Optimizer, learning_rate_factor
from training.demo_models.prepare import Documents
from training.demo_models.progress import Curve, Progress
from training.demo_models.sampler import generate
from training.demo_models.settings import Options

LossFunction = Callable[[CausalLM, Tensor, Tensor, Tensor, Mask], tuple[Tensor, Tensor]]


def mask_of(documents: Tensor) -> Mask:
    """A block mask on a GPU, a dense one elsewhere."""
    return block_mask(documents) if documents.is_cuda else dense_mask(documents)


def compute_dtype(options: Options) -> torch.dtype:
    return torch.bfloat16 if options.device.startswith("cuda") else torch.float32


def new_model(options: Options, draft: bool = False) -> CausalLM:
    """A fresh target or draft on the device, float32 parameters."""
    recipe = options.recipe
    model = CausalLM(recipe.draft if draft else recipe.target, compute_dtype(options)).to(options.device)
    initialise(model, recipe.seed + draft)
    return model


def frozen_copy(model: CausalLM) -> CausalLM:
    """The model as it will be exported: bfloat16 weights on a GPU, no gradients."""
    copy = type(model)(model.shape, model.dtype).to(model.cos.device)
    copy.load_state_dict(
        {name: value.to(model.dtype, copy=True) for name, value in model.state_dict().items()}, assign=True
    )
    return copy.requires_grad_(False)


def random_batch(options: Options, rows: int) -> Batch:
    """Meaningless rows for compilation."""
    recipe = options.recipe
    size = (rows, recipe.row_length)
    generator = torch.Generator(options.device).manual_seed(0)
    tokens = torch.randint(0, recipe.vocab_size, size, device=options.device, generator=generator)
    documents = (torch.arange(recipe.row_length, device=options.device, dtype=torch.int32) // 100).repeat(rows, 1)
    return Batch(tokens, tokens.clone(), torch.ones(size, device=options.device), documents)


@dataclass(slots=True)
class TargetTraining:
    """The target, its optimizer's recipe and the data it reads."""

    options: Options
    progress: Progress
    model: CausalLM
    loss: LossFunction

    @staticmethod
    def build(options: Options, progress: Progress) -> "TargetTraining":
        loss = torch.compile(signed_loss, dynamic=False) if options.compile else signed_loss
        return TargetTraining(options, progress, new_model(options), loss)

    def warm_up(self) -> None:
        """Compile the step; the parameters stay as they are."""
        batch = random_batch(self.options, self.options.recipe.batch_rows)
        loss, _ = self.loss(self.model, batch.tokens, batch.targets, batch.weights, mask_of(batch.documents))
        torch.autograd.backward(loss)
        self.model.zero_grad(set_to_none=True)

    def train(self, documents: Documents, sources: list[str]) -> None:
        """Pretrain on everything, then anneal on conversations with the loss on answers."""
        recipe = self.options.recipe
        optimizer = Optimizer(self.model, recipe.matrix_lr, recipe.embedding_lr, recipe.weight_decay)
        curve = Curve(self.progress, "target", recipe.batch_rows * recipe.row_length)
        decay_from = int(recipe.target_steps * (1 - recipe.anneal_fraction))
        stream = self.stream(documents, sources, decay_from)
        for step, batch in zip(range(recipe.target_steps), stream, strict=False):
            factor = learning_rate_factor(step, recipe.target_steps, 100, decay_from)
            curve.add(step, self.update(optimizer, batch, factor))

    def update(self, optimizer: Optimizer, batch: Batch, factor: float) -> Tensor:
        """One step; returns nats a token on answers and text."""
        mask = mask_of(batch.documents)
        loss, nats = self.loss(self.model, batch.tokens, batch.targets, batch.weights, mask)
        torch.autograd.backward(loss)
        optimizer.step(factor)
        return nats

    def stream(self, documents: Documents, sources: list[str], pretrain_steps: int) -> Iterator[Batch]:
        recipe = self.options.recipe
        generator = np.random.default_rng(recipe.seed)
        tokens_a_step = recipe.batch_rows * recipe.row_length
        everything = np.ones(len(documents.lengths), dtype=np.bool_)
        order = draw_order(documents, PRETRAIN_PASSES, sources, everything, pretrain_steps * tokens_a_step, generator)
        corpus = to_corpus(documents, 1.0, self.options.device)
        stream = batches(corpus, order, recipe.batch_rows, recipe.row_length, recipe.glue, recipe.seed)
        for _, batch in zip(range(pretrain_steps), stream, strict=False):
            yield batch
        corpus = to_corpus(documents, recipe.prompt_weight, self.options.device)
        keep = good_for_annealing(documents, ANNEAL_LONGEST_ANSWER)
        left = (recipe.target_steps - pretrain_steps + 8) * tokens_a_step
        order = draw_order(documents, ANNEAL_PASSES, sources, keep, left, generator)
        yield from batches(corpus, order, recipe.batch_rows, recipe.row_length, recipe.glue / 2, recipe.seed + 1)

    def polish(
        self,
        documents: Documents,
        sources: list[str],
        stops: list[int],
        rounds: int = 2,
        has_time: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let the target answer, find what it repeats, and train it away amid ordinary answers.

        A round begins if `has_time` says so.
        """
        recipe = self.options.recipe
        steps = recipe.polish_steps // rounds
        if not steps:
            return
        for number in range(rounds):
            if not has_time():
                self.progress.say(f"polish round {number}: no time is left for it")
                return
            model = frozen_copy(self.model)
            prompts = draw_prompts(
                documents, PROMPT_PASSES, sources, recipe.polish_prompts, recipe.row_length - 200, recipe.seed + number
            )
            answers = generate(model, prompts, [0.0] * len(prompts), 192, stops, recipe.seed)
            repeats = [repeated_positions(answer) for answer in answers]
            looping = [index for index, found in enumerate(repeats) if any(found)]
            share = len(looping) / len(answers)
            self.progress.say(f"polish round {number}: {share:.1%} of {len(answers)} answers repeat a run of 8 tokens")
            if not looping:
                return
            loops = answer_corpus(
                [prompts[index] for index in looping],
                [answers[index] for index in looping],
                [[-recipe.polish_penalty * found for found in repeats[index]] for index in looping],
                self.options.device,
            )
            self.unlearn(documents, sources, loops, steps, recipe.seed + number)

    def unlearn(self, documents: Documents, sources: list[str], loops: Corpus, steps: int, seed: int) -> None:
        """Train on loops (a third of the tokens) and answers from the corpus together."""
        recipe = self.options.recipe
        generator = np.random.default_rng(seed)
        tokens = (steps + 4) * recipe.batch_rows * recipe.row_length
        keep = good_for_annealing(documents, ANNEAL_LONGEST_ANSWER)
        good = draw_order(documents, ANNEAL_PASSES, sources, keep, tokens * 2 // 3, generator)
        passes = max(1, round(tokens / 3 / loops.lengths.sum()))
        bad = np.repeat(np.arange(len(loops.lengths)), passes)
        corpus = to_corpus(documents, recipe.prompt_weight, self.options.device)
        both = Corpus(
            torch.cat((corpus.tokens, loops.tokens)),
            torch.cat((corpus.weights, loops.weights)),
            np.concatenate((corpus.lengths, loops.lengths)),
        )
        order = generator.permutation(np.concatenate((good, bad + len(corpus.lengths))))
        scale = recipe.polish_lr_scale
        optimizer = Optimizer(self.model, recipe.matrix_lr * scale, recipe.embedding_lr * scale, recipe.weight_decay)
        curve = Curve(self.progress, "polish", recipe.batch_rows * recipe.row_length, every=50)
        stream = batches(both, order, recipe.batch_rows, recipe.row_length, 0.0, seed)
        for step, batch in zip(range(steps), stream, strict=False):
            curve.add(step, self.update(optimizer, batch, learning_rate_factor(step, steps, 20, steps // 3)))
