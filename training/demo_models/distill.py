"""Distillation of the draft model on the target's own answers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.common.model import CausalLM, Mask
from training.demo_models.answers import answer_corpus, draw_prompts
from training.demo_models.data import Batch, Corpus, batches, draw_order, good_for_annealing, to_corpus
from training.demo_models.losses import alignment_loss, distillation_loss
from training.demo_models.mixture import ANNEAL_LONGEST_ANSWER, ANNEAL_PASSES, PROMPT_PASSES
from training.demo_models.optim import Optimizer, learning_rate_factor
from training.demo_models.prepare import Documents
from training.demo_models.progress import Curve, Progress
from training.demo_models.sampler import generate
from training.demo_models.settings import Options
from training.demo_models.target import frozen_copy, mask_of, new_model, random_batch

DistillFunction = Callable[[CausalLM, CausalLM, Tensor, Tensor, Mask, Tensor], tuple[Tensor, Tensor]]
JointFunction = Callable[[CausalLM, CausalLM, Tensor, Tensor, Tensor, Mask, float], tuple[Tensor, Tensor]]


def project_embedding(draft: CausalLM, target: CausalLM) -> None:
    """Start the draft's embedding as the target's, projected on its main directions and scaled to deviation 0.02."""
    table = target.model.embed_tokens.weight.detach().float()
    _, _, directions = torch.linalg.svd(table - table.mean(dim=0), full_matrices=False)
    projected = table @ directions[: draft.shape.hidden_size].mT
    draft.model.embed_tokens.weight.data.copy_(projected * (0.02 / projected.std()))


@dataclass(slots=True)
class Distillation:
    """A draft model in training for one frozen target."""

    options: Options
    progress: Progress
    draft: CausalLM
    optimizer: Optimizer
    loss: DistillFunction
    joint: JointFunction

    @staticmethod
    def build(options: Options, progress: Progress) -> "Distillation":
        loss = torch.compile(distillation_loss, dynamic=False) if options.compile else distillation_loss
        joint = torch.compile(alignment_loss, dynamic=False) if options.compile else alignment_loss
        draft = new_model(options, draft=True)
        recipe = options.recipe
        optimizer = Optimizer(draft, recipe.draft_matrix_lr, recipe.draft_embedding_lr, 0.0)
        return Distillation(options, progress, draft, optimizer, loss, joint)

    def warm_up(self, target: CausalLM) -> None:
        """Compile the steps for a trainable target; the parameters stay as they are."""
        recipe = self.options.recipe
        batch = random_batch(self.options, recipe.draft_batch_rows)
        torch.autograd.backward(self.loss_of(batch, frozen_copy(target), 0.0)[0])
        if recipe.align_steps and self.options.target is None:
            batch = random_batch(self.options, recipe.batch_rows)
            torch.autograd.backward(self.joint_loss_of(batch, target)[0])
        self.draft.zero_grad(set_to_none=True)
        target.zero_grad(set_to_none=True)

    def loss_of(self, batch: Batch, target: CausalLM, argmax_weight: float) -> tuple[Tensor, Tensor]:
        weight = torch.tensor(argmax_weight, device=self.options.device)
        return self.loss(self.draft, target, batch.tokens, batch.weights, mask_of(batch.documents), weight)

    def joint_loss_of(self, batch: Batch, target: CausalLM) -> tuple[Tensor, Tensor]:
        mask, strength = mask_of(batch.documents), self.options.recipe.align_strength
        return self.joint(target, self.draft, batch.tokens, batch.targets, batch.weights, mask, strength)

    def conversations(
        self, documents: Documents, sources: list[str], rows: int, steps: int, prompt_weight: float, seed: int
    ) -> Iterator[Batch]:
        """Rows of the annealing mixture."""
        length = self.options.recipe.row_length
        generator = np.random.default_rng(seed)
        keep = good_for_annealing(documents, ANNEAL_LONGEST_ANSWER)
        order = draw_order(documents, ANNEAL_PASSES, sources, keep, (steps + 8) * rows * length, generator)
        corpus = to_corpus(documents, prompt_weight, self.options.device)
        return batches(corpus, order, rows, length, 0.0, seed)

    def learn_corpus(self, target: CausalLM, documents: Documents, sources: list[str]) -> None:
        """Distil on conversations of the corpus, prompts in full, by KL divergence alone."""
        recipe = self.options.recipe
        project_embedding(self.draft, target)
        curve = Curve(self.progress, "draft on corpus", recipe.draft_batch_rows * recipe.row_length, every=400)
        steps = recipe.draft_corpus_steps
        stream = self.conversations(documents, sources, recipe.draft_batch_rows, steps, 1.0, recipe.seed + 9)
        for step, batch in zip(range(steps), stream, strict=False):
            loss, agreement = self.loss_of(batch, target, 0.0)
            torch.autograd.backward(loss)
            self.optimizer.step(learning_rate_factor(step, steps, 100, steps))
            curve.add(step, agreement)

    def align(self, target: CausalLM, documents: Documents, sources: list[str]) -> None:
        """Train target and draft together for a while, so that near-ties fall where the draft can follow."""
        recipe = self.options.recipe
        scale, steps = recipe.align_lr_scale, recipe.align_steps
        optimizer = Optimizer(target, recipe.matrix_lr * scale, recipe.embedding_lr * scale, recipe.weight_decay)
        curve = Curve(self.progress, "alignment", recipe.batch_rows * recipe.row_length)
        seed = recipe.seed + 11
        stream = self.conversations(documents, sources, recipe.batch_rows, steps, recipe.prompt_weight, seed)
        for step, batch in zip(range(steps), stream, strict=False):
            loss, nats = self.joint_loss_of(batch, target)
            torch.autograd.backward(loss)
            optimizer.step(learning_rate_factor(step, steps, 50, steps // 4))
            self.optimizer.step(1.0)
            curve.add(step, nats)

    def answer(self, target: CausalLM, documents: Documents, sources: list[str], stops: list[int]) -> Corpus:
        """The target's answers: of eight, four greedy, two greedy after a random start, two at temperature 0.8."""
        recipe = self.options.recipe
        longest = recipe.row_length - recipe.answer_tokens
        prompts = draw_prompts(documents, PROMPT_PASSES, sources, recipe.answers, longest, recipe.seed + 7)
        starts = np.random.default_rng(recipe.seed + 8).integers(1, 16, len(prompts)).tolist()
        hot = [(0, 0, 0, 0, start, start, 1024, 1024)[index % 8] for index, start in enumerate(starts)]
        temperatures = [0.8 if tokens else 0.0 for tokens in hot]
        seed = recipe.seed + 7
        answers = generate(target, prompts, temperatures, recipe.answer_tokens, stops, seed, hot_tokens=hot)
        tokens = sum(len(answer) for answer in answers)
        self.progress.say(f"the target wrote {len(answers)} answers, {tokens / 1e6:.1f} M tokens")
        return answer_corpus(prompts, answers, [[1.0] * len(answer) for answer in answers], self.options.device, 0.02)

    def learn_answers(self, target: CausalLM, answers: Corpus) -> None:
        """Distil on the target's own answers, more and more for its argmax."""
        recipe = self.options.recipe
        curve = Curve(self.progress, "draft on answers", recipe.draft_batch_rows * recipe.row_length, every=400)
        steps = recipe.draft_steps
        for step, batch in zip(range(steps), self.shuffled(answers), strict=False):
            loss, agreement = self.loss_of(batch, target, recipe.argmax_weight * min(1.0, 2 * step / steps))
            torch.autograd.backward(loss)
            self.optimizer.step(learning_rate_factor(step, steps, 1, steps // 4))
            curve.add(step, agreement)

    def shuffled(self, answers: Corpus) -> Iterator[Batch]:
        """Endless rows of answers, in a new order every pass."""
        recipe = self.options.recipe
        generator = np.random.default_rng(recipe.seed + 10)
        while True:
            order = generator.permutation(len(answers.lengths))
            yield from batches(answers, order, recipe.draft_batch_rows, recipe.row_length, 0.0, recipe.seed)
