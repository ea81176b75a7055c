"""Makes both demo models from the corpus: `python -m training.demo_models.pretrain --corpus DIR --output DIR`."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import torch
from tokenizers import Tokenizer

from slipstream.packages import child_environment
from training.common.model import CausalLM
from training.demo_models.card import write_cards
from training.demo_models.distill import Distillation
from training.demo_models.evaluate import acceptance_report, heldout_report, sample_answers
from training.demo_models.export import export, load, save_weights
from training.demo_models.prepare import Documents
from training.demo_models.progress import Progress
from training.demo_models.settings import Options, parse
from training.demo_models.target import TargetTraining, compute_dtype, frozen_copy
from training.demo_models.tokenizer import stop_ids

TARGET_NAME = "slipstream-demo"
DRAFT_NAME = "slipstream-demo-draft"


def start_preparation(options: Options) -> subprocess.Popen[bytes]:
    """Tokenise in a process of its own while this one compiles."""
    recipe = options.recipe
    numbers = (recipe.vocab_size, recipe.row_length, recipe.seed, options.workers)
    folders = (str(options.corpus), str(options.work))
    command = [sys.executable, "-m", "training.demo_models.prepare", *folders, *map(str, numbers)]
    if options.target is not None:
        command.append(str(options.target / "tokenizer.json"))
    return subprocess.Popen(command, env=os.environ | child_environment())


def finish_preparation(process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        raise RuntimeError(f"preparation of the corpus ended with status {process.returncode}")


def train_target(
    options: Options,
    progress: Progress,
    target_training: TargetTraining,
    distillation: Distillation,
    documents: Documents,
    sources: list[str],
) -> CausalLM:
    """All phases of the target, with a checkpoint after the longest. Returns the finished target."""
    tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
    with progress.phase("target"):
        target_training.train(documents, sources)
    save_weights(target_training.model, options.work / "checkpoint-annealed", 2**40)
    with progress.phase("distillation on the corpus"):
        distillation.learn_corpus(frozen_copy(target_training.model), documents, sources)
    with progress.phase("alignment"):
        distillation.align(target_training.model, documents, sources)
    with progress.phase("polish"):
        target_training.polish(documents, sources, stop_ids(tokenizer))
    return frozen_copy(target_training.model)


def evaluate(options: Options, progress: Progress, target: CausalLM, draft: CausalLM, tokenizer: Tokenizer) -> None:
    """Measure both models and put the figures into the run's results."""
    heldout = Documents.load(options.work / "heldout.npz")
    progress.results["heldout"] = heldout_report(target, heldout, options.recipe.row_length, options.device)
    progress.results["samples"] = sample_answers(target, tokenizer)
    if options.eval_prompts is not None:
        for name in ("spec_bench_question", "in_domain_heldout"):
            path = options.eval_prompts / f"{name}.jsonl"
            progress.results[name] = acceptance_report(target, draft, tokenizer, path)
    print(json.dumps(progress.results, indent=1), flush=True)


def run(options: Options) -> None:
    """The whole run."""
    torch.set_float32_matmul_precision("high")
    progress = Progress()
    options.work.mkdir(parents=True, exist_ok=True)
    progress.results["recipe"] = asdict(options.recipe)
    progress.results["target_parameters"] = options.recipe.target.parameters
    progress.results["draft_parameters"] = options.recipe.draft.parameters
    preparation = start_preparation(options)
    with progress.phase("compile"):
        target_training = TargetTraining.build(options, progress)
        distillation = Distillation.build(options, progress)
        if options.target is None:
            target_training.warm_up()
        distillation.warm_up(target_training.model)
    with progress.phase("wait for tokens"):
        finish_preparation(preparation)
        tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
        sources: list[str] = json.loads((options.work / "sources.json").read_text())
        documents = Documents.load(options.work / "corpus.npz")
        asked = Documents.concatenate([documents, Documents.load(options.work / "prompts.npz")])
    progress.results["corpus_tokens"] = len(documents.tokens)
    if options.target is None:
        target = train_target(options, progress, target_training, distillation, documents, sources)
        export(target, tokenizer, options.output / TARGET_NAME)
    else:
        target = load(options.target, compute_dtype(options), options.device)
        with progress.phase("distillation on the corpus"):
            distillation.learn_corpus(target, documents, sources)
    with progress.phase("answers"):
        answers = distillation.answer(target, asked, sources, stop_ids(tokenizer))
    with progress.phase("distillation on answers"):
        distillation.learn_answers(target, answers)
    draft = frozen_copy(distillation.draft)
    export(draft, tokenizer, options.output / DRAFT_NAME)
    with progress.phase("evaluation"):
        evaluate(options, progress, target, draft, tokenizer)
    progress.say("done")
    progress.save(options.work / "report.json")
    write_cards(progress, options.output / TARGET_NAME, options.output / DRAFT_NAME)


def main(arguments: list[str] | None = None) -> None:
    """Command line entry."""
    run(parse(arguments))


if __name__ == "__main__":
    main()
