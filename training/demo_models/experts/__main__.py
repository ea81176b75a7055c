"""Makes the demo mixture and its EAGLE-3 head: `python -m training.demo_models.experts --corpus DIR --output DIR`.

The target has the form of Qwen3-MoE and the demo model's tokenizer. It learns as the demo model does, with a loss that
keeps experts equally busy; then the head learns from its answers. Each is exported as soon as it is done.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from functools import partial

import torch
from tokenizers import Tokenizer
from torch import Tensor

from slipstream.packages import child_environment
from training.common.attention_masks import dense_mask
from training.common.mixture_model import MixtureLM
from training.common.model import initialise
from training.demo_models.data import batches, to_corpus
from training.demo_models.evaluate import heldout_report, sample_answers
from training.demo_models.experts.head import answered, features, seconds_left, train_head
from training.demo_models.experts.settings import MixtureOptions, parse
from training.demo_models.export import export
from training.demo_models.losses import balanced_loss
from training.demo_models.prepare import Documents
from training.demo_models.pretrain import finish_preparation
from training.demo_models.progress import Progress
from training.demo_models.target import TargetTraining, compute_dtype, frozen_copy, mask_of, random_batch
from training.demo_models.tokenizer import stop_ids

TARGET_NAME = "slipstream-demo-experts"
HEAD_NAME = "slipstream-demo-experts-eagle3"
TIMED_STEPS = 4
OPTIMIZER_SHARE = 1.15
"""A step's time over that of its passes, as was measured of the demo model's."""
TARGET_SHARE = 0.55
"""The most of the time left that the target's steps may have."""
POLISH_RESERVE = 1.5
"""Of the head's seconds, which must be left where a round of polishing begins."""


def start_preparation(options: MixtureOptions) -> subprocess.Popen[bytes]:
    """Tokenise in a process of its own while this one compiles."""
    recipe = options.recipe
    numbers = (recipe.vocab_size, recipe.row_length, recipe.seed, options.workers)
    places = (options.corpus, options.work)
    command = [sys.executable, "-m", "training.demo_models.prepare", *map(str, (*places, *numbers, options.tokenizer))]
    return subprocess.Popen(command, env=os.environ | child_environment())


def build(options: MixtureOptions, progress: Progress) -> TargetTraining:
    """A fresh mixture and its loss."""
    model = MixtureLM(options.recipe.target, compute_dtype(options)).to(options.device)
    initialise(model, options.recipe.seed)
    loss = partial(balanced_loss, strength=options.recipe.balance)
    return TargetTraining(options, progress, model, torch.compile(loss, dynamic=False) if options.compile else loss)


def step_seconds(training: TargetTraining) -> float:
    """How long a step takes, once compiled; the parameters stay as they are."""
    options = training.options
    batch = random_batch(options, options.recipe.batch_rows)
    began = 0.0
    for number in range(TIMED_STEPS + 1):
        loss, nats = training.loss(training.model, batch.tokens, batch.targets, batch.weights, mask_of(batch.documents))
        torch.autograd.backward(loss)
        training.model.zero_grad(set_to_none=True)
        nats.item()
        if number == 0:
            began = time.perf_counter()  # compiled by now
    return OPTIMIZER_SHARE * (time.perf_counter() - began) / TIMED_STEPS


def busy(model: MixtureLM, heldout: Documents, options: MixtureOptions) -> Tensor:
    """Part of the places of held-out tokens that each expert has, [layers, experts]."""
    corpus = to_corpus(heldout, 1.0, options.device)
    order = torch.arange(len(heldout.lengths)).numpy()
    batch = next(iter(batches(corpus, order, 8, options.recipe.row_length, 0.0, 0, keep_last=True)))
    return model.shares(batch.tokens, dense_mask(batch.documents)).cpu()


def run(options: MixtureOptions) -> None:
    """The whole run."""
    torch.set_float32_matmul_precision("high")
    progress = Progress()
    options.work.mkdir(parents=True, exist_ok=True)
    shape = options.recipe.target
    progress.results |= {"parameters": shape.parameters, "active_parameters": shape.active_parameters}
    preparation = start_preparation(options)
    with progress.phase("compile"):
        training = build(options, progress)
        step = step_seconds(training)
        seconds = min(options.recipe.target_seconds, TARGET_SHARE * seconds_left(options, progress))
        steps = max(1, min(options.recipe.target_steps, int(seconds / step)))
    options = replace(options, recipe=replace(options.recipe, target_steps=steps))
    training.options = options
    progress.results["recipe"] = asdict(options.recipe)
    with progress.phase("wait for tokens"):
        finish_preparation(preparation)
        tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
        sources: list[str] = json.loads((options.work / "sources.json").read_text())
        documents, heldout = (Documents.load(options.work / f"{name}.npz") for name in ("corpus", "heldout"))
        asked = Documents.concatenate([documents, Documents.load(options.work / "prompts.npz")])
    stops, folder = stop_ids(tokenizer), options.output / TARGET_NAME
    progress.say(f"{steps} steps of {options.recipe.batch_rows * options.recipe.row_length} tokens")
    with progress.phase("target"):
        training.train(documents, sources)
    export(frozen_copy(training.model), tokenizer, folder)
    with progress.phase("polish"):
        reserve = POLISH_RESERVE * options.recipe.head_seconds
        training.polish(documents, sources, stops, has_time=lambda: seconds_left(options, progress) >= reserve)
    target = frozen_copy(training.model)
    del training
    export(target, tokenizer, folder)
    assert isinstance(target, MixtureLM)
    progress.results["heldout"] = heldout_report(target, heldout, options.recipe.row_length, options.device)
    progress.results["shares"] = busy(target, heldout, options).tolist()
    progress.results["samples"] = sample_answers(target, tokenizer)
    progress.save(options.work / "report.json")
    seed = options.recipe.seed
    with progress.phase("answers"):
        said = answered(
            options, progress, target, asked, sources, stops, count=options.recipe.head_answers, greedy=False, seed=seed
        )
        kept = answered(
            options,
            progress,
            target,
            heldout,
            sources,
            stops,
            count=options.recipe.head_heldout,
            greedy=True,
            seed=seed,
        )
    progress.say(f"{len(said.answers)} answers, {sum(map(len, said.answers)) / 1e6:.1f} M tokens")
    with progress.phase("states"):
        test = features(options, progress, target, folder, kept)
        source = features(options, progress, target, folder, said)
    progress.results["states"] = {"sequences": len(source), "tokens": sum(source.lengths)}
    with progress.phase("head"):
        manifest = train_head(options, progress, source, test)
    shutil.copytree(options.work / "head" / "head", options.output / HEAD_NAME, dirs_exist_ok=True)
    progress.results["head"] = manifest["heldout"]
    progress.say(f"head: {manifest['heldout']['acceptance_length']} tokens a step, simulated")
    progress.save(options.work / "report.json")


def main(arguments: list[str] | None = None) -> None:
    """Command line entry."""
    run(parse(arguments))


if __name__ == "__main__":
    main()
