"""Distillation of the draft model on the target's own answers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.answers import answer_corpus, draw_prompts
from training.data import Batch, Corpus, batches, draw_order, good_for_annealing, to_corpus
from training.losses import distillation_loss
from training.mixture import ANNEAL_LONGEST_ANSWER, ANNEAL_PASSES, PROMPT_PASSES
from training.model import CausalLM, Mask
from training.optim import Optimizer, learning_rate_factor
from training.prepare import Documents
from training.progress import Curve, Progress
from training.sampler import generate
from training.settings import Options
from training.target import mask_of, new_model, random_batch

DistillFunction = Callable[[CausalLM, CausalLM, Tensor, Tensor, Mask, float], tuple[Tensor, Tensor]]


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
    loss: DistillFunction

    @staticmethod
    def build(options: Options, progress: Progress) -> "Distillation":
        loss = torch.compile(distillation_loss, dynamic=False) if options.compile else distillation_loss
        return Distillation(options, progress, new_model(options, draft=True), loss)

    def warm_up(self, target: CausalLM) -> None:
        """Compile the step; the parameters stay as they are."""
        batch = random_batch(self.options, self.options.recipe.draft_batch_rows)
        weight = self.options.recipe.argmax_weight
        loss, _ = self.loss(self.draft, target, batch.tokens, batch.weights, mask_of(batch.documents), weight)
        loss.backward()
        self.draft.zero_grad(set_to_none=True)

    def answer(self, target: CausalLM, documents: Documents, sources: list[str], stops: list[int]) -> Corpus:
        """The target's answers, one half greedy and one half at temperature 0.8."""
        recipe = self.options.recipe
        longest = recipe.row_length - recipe.answer_tokens
        prompts = draw_prompts(documents, PROMPT_PASSES, sources, recipe.answers, longest, recipe.seed + 7)
        temperatures = [0.0 if index % 2 else 0.8 for index in range(len(prompts))]
        answers = generate(target, prompts, temperatures, recipe.answer_tokens, stops, recipe.seed + 7)
        tokens = sum(len(answer) for answer in answers)
        self.progress.say(f"the target wrote {len(answers)} answers, {tokens / 1e6:.1f} M tokens")
        return answer_corpus(prompts, answers, [[1.0] * len(answer) for answer in answers], self.options.device, 0.02)

    def train(self, target: CausalLM, documents: Documents, sources: list[str], answers: Corpus) -> None:
        """Distil on the corpus first, then on the target's own answers."""
        recipe = self.options.recipe
        project_embedding(self.draft, target)
        optimizer = Optimizer(self.draft, recipe.draft_matrix_lr, recipe.draft_embedding_lr, 0.0)
        curve = Curve(self.progress, "draft agreement", recipe.draft_batch_rows * recipe.row_length)
        stream = self.stream(documents, sources, answers)
        steps = recipe.draft_steps
        for step, batch in zip(range(steps), stream, strict=False):
            mask = mask_of(batch.documents)
            loss, agreement = self.loss(
                self.draft, target, batch.tokens, batch.weights, mask, recipe.argmax_weight
            )
            loss.backward()
            optimizer.step(learning_rate_factor(step, steps, 100, int(steps * 0.4)))
            curve.add(step, agreement)

    def stream(self, documents: Documents, sources: list[str], answers: Corpus) -> Iterator[Batch]:
        recipe = self.options.recipe
        rows, length = recipe.draft_batch_rows, recipe.row_length
        generator = np.random.default_rng(recipe.seed + 9)
        corpus_steps = int(recipe.draft_steps * recipe.draft_corpus_fraction)
        keep = good_for_annealing(documents, ANNEAL_LONGEST_ANSWER)
        tokens = (corpus_steps + 8) * rows * length
        order = draw_order(documents, ANNEAL_PASSES, sources, keep, tokens, generator)
        corpus = to_corpus(documents, recipe.prompt_weight, self.options.device)
        stream = batches(corpus, order, rows, length, 0.0, recipe.seed + 9)
        for _, batch in zip(range(corpus_steps), stream, strict=False):
            yield batch
        while True:
            shuffled = generator.permutation(len(answers.lengths))
            yield from batches(answers, shuffled, rows, length, 0.0, recipe.seed + 10)
