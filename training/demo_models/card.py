"""Model cards and the picture of the loss curve."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

from training.demo_models.progress import Progress

SOURCES: Final = (
    (
        "oasst-model-eval",
        "Open-Assistant/oasst-model-eval, sampling reports of pythia, falcon and open-llama models",
        "Apache-2.0",
    ),
    ("dolly-15k", "databricks-dolly-15k", "CC-BY-SA-3.0"),
    ("schema-guided-dialogue", "google-research-datasets/dstc8-schema-guided-dialogue", "CC-BY-SA-4.0"),
    ("open-english-wordnet", "globalwordnet/english-wordnet as questions and answers", "CC-BY-4.0, WordNet licence"),
    ("opentriviaqa", "uberspot/OpenTriviaQA", "CC-BY-SA-4.0"),
    (
        "t0-permissive-subset",
        "13 of the P3 data sets, from yizhongw/self-instruct",
        "Apache-2.0; MIT, CC-BY-4.0, CC-BY-SA",
    ),
    ("flan-cot, aqua", "google-research/FLAN chain-of-thought data", "Apache-2.0"),
    ("tldr-pages", "tldr-pages/tldr as questions and answers", "CC-BY-4.0"),
    ("topical-chat", "alexa/Topical-Chat", "CDLA-Sharing-1.0"),
    ("taskmaster", "google-research-datasets/Taskmaster", "CC-BY-4.0"),
    (
        "small-chitchat-seed",
        "chatterbot-corpus, botframework-cli, self-instruct seeds, instructlab/taxonomy",
        "BSD-3, MIT, Apache-2.0",
    ),
    ("openstax-glossary, openstax-cc-by", "five OpenStax books", "CC-BY-4.0"),
    ("synthetic-math-own", "arithmetic made from templates of our own", "own work"),
    ("gsm8k-train", "openai/grade-school-math, training part", "MIT"),
    (
        "git-commit-edits",
        "functions before and after commits of 37 permissive repositories",
        "BSD, MIT, Apache-2.0, ISC",
    ),
    (
        "python-functions, python-edits-derived",
        "functions of 47 permissive Python repositories",
        "PSF-2.0, BSD, MIT, Apache-2.0, ISC, HPND",
    ),
    (
        "python-modules",
        "RustPython Lib, TheAlgorithms, realpython, geekcomputers, keon, pygorithm, boltons",
        "PSF-2.0, MIT, BSD-3",
    ),
    ("leetcode-solutions", "walkccc/LeetCode, kamyu104/LeetCode-Solutions", "MIT"),
    ("gpteacher", "teknium1/GPTeacher (text made by GPT-4)", "MIT"),
    ("exercism-python", "exercism/python", "MIT"),
    ("mbpp-train", "MBPP 511-974", "CC-BY-4.0"),
    ("python-peps", "python/peps", "public domain, CC0-1.0"),
    ("d2l-en", "d2l-ai/d2l-en", "CC-BY-SA-4.0"),
    ("hf-course-en", "huggingface/course", "Apache-2.0"),
    ("rust-book", "rust-lang/book", "MIT or Apache-2.0"),
    ("slipstream-identity", "greetings and questions about the model, written for this project", "Apache-2.0"),
)


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + " --- |" * (lines[0].count("|") - 1))
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def draw_curve(progress: Progress, path: Path) -> None:
    """Nats a token against steps."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3))
    points = progress.curves.get("target", [])
    axes.plot([step for step, _ in points], [value for _, value in points])
    axes.set_xlabel("step")
    axes.set_ylabel("nats per token (answers, text)")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def heldout_table(results: dict[str, Any]) -> str:
    """Held-out losses by kind."""
    heldout = results["heldout"]
    rows = []
    for kind, figures in heldout["all"].items():
        answers = heldout["answers"].get(kind, {"nats_per_token": "", "bits_per_byte": ""})
        rows.append([kind, *figures.values(), *answers.values()])
    return table(
        ("kind", "nats/token, whole text", "bits/byte, whole text", "nats/token, answers", "bits/byte, answers"), rows
    )


def loop_table(results: dict[str, Any]) -> str:
    """How often greedy answers repeat themselves and end."""
    rows = [
        [name, r["repeats_16gram_in_64"], r["repeats_16gram_in_256"], r["ended_within_256"], r["mean_answer_tokens"]]
        for name, r in evaluations(results)
    ]
    head = ("prompts", "repeat a 16-gram in 64 tokens", "in 256 tokens", "end within 256", "mean tokens")
    return table(head, rows)


def evaluations(results: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The evaluation sets that were run."""
    return [(name, results[name]) for name in ("spec_bench_question", "in_domain_heldout") if name in results]


def acceptance_table(results: dict[str, Any]) -> str:
    """Acceptance length by category."""
    rows = [
        [name, category, value]
        for name, figures in evaluations(results)
        for category, value in figures["acceptance_length"].items()
    ]
    return table(("prompts", "category", "tokens a verify step"), rows)


def samples_text(results: dict[str, Any]) -> str:
    """The sample answers as quotations."""
    parts = []
    for sample in results["samples"]:
        system = f"*system:* {sample['system']}\n\n" if sample["system"] else ""
        ending = "" if sample["ended"] == "yes" else "\n(cut at 256 tokens)"
        parts.append(f"{system}*user:* {sample['user']}\n\n````\n{sample['assistant']}{ending}\n````")
    return "\n\n".join(parts)


def phases_text(progress: Progress) -> str:
    """Wall-clock seconds of each phase."""
    return table(("phase", "seconds"), [*progress.phases.items(), ("whole run", round(progress.elapsed, 1))])


TARGET_CARD: Final = """\
---
license: cc-by-sa-4.0
language: en
library_name: transformers
---

# slipstream-demo

A chat model of {parameters} parameters in Llama format ({layers} layers, {hidden} wide, {heads} query heads and
{kv_heads} key-value head of {head_dim}, context 4,096, byte-level BPE of {vocab} tokens). It exists so that a
speculative-decoding server can be tried and tested on any machine. It writes fluent short English and plausible
code; its facts and its arithmetic are often wrong, and it must not be used for anything that matters.

The chat template knows the roles system (first message only), user and assistant; an answer ends with
`<|end|>`.

## Training

{corpus_tokens} million tokens of text, read several times: {steps} steps of {batch} tokens in rows of {rows},
documents masked from one another. Muon for matrices, AdamW for the embedding and norms; warm-up, stable, decay.
During the decay conversations are preferred, answers are short, and the loss lies on answers and their end (weight
{prompt_weight} on prompts). Then {align} steps of target and draft model together (the loss adds {strength} times
their KL divergence, so that near-ties fall where the draft can follow), and {polish} steps of unlikelihood on the
runs the model repeats in its own greedy answers. Seed {seed}.

![loss](loss.png)

{phases}

Reproduce on one H200: `python -m training.demo_models.pretrain --corpus DIR --output demo_models --eval-prompts DIR`.

## Measured

Held-out records of the same sources:

{heldout}

Greedy answers:

{loops}

## Data

{sources}

Records that share 13 words with the usual evaluation prompts were removed. Sources under share-alike licences
are among the data, so these weights are offered under CC-BY-SA-4.0.

## Samples (greedy)

{samples}
"""

DRAFT_CARD: Final = """\
---
license: cc-by-sa-4.0
language: en
library_name: transformers
---

# slipstream-demo-draft

The draft model of slipstream-demo: {parameters} parameters, {layers} layers, {hidden} wide, same tokenizer. Its
embedding starts as the target's, projected; it was distilled for {corpus_steps} steps of {batch} tokens on
conversations of the corpus, trained beside the target for {align} steps, and distilled for {steps} steps on
{answers} answers of the target's own (half greedy, a quarter greedy after a random start, a quarter at temperature
0.8), minimising the KL divergence from the target's distribution blended with cross-entropy to its argmax (weight
rising to {argmax_weight}).

## Measured

Tokens a verify step (bonus included), greedy chains of 4 drafted tokens, 64 new tokens at temperature 0:

{acceptance}
"""


def write_cards(progress: Progress, target: Path, draft: Path) -> None:
    """README.md of both models and the loss curve, where the directory exists."""
    results, recipe = progress.results, progress.results["recipe"]
    if target.is_dir() and "target" in progress.curves:
        draw_curve(progress, target / "loss.png")
        (target / "README.md").write_text(
            TARGET_CARD.format(
                parameters=f"{results['target_parameters'] / 1e6:.2f} M",
                layers=recipe["layers"],
                hidden=recipe["hidden_size"],
                heads=recipe["heads"],
                kv_heads=recipe["kv_heads"],
                head_dim=recipe["head_dim"],
                vocab=recipe["vocab_size"],
                corpus_tokens=round(results["corpus_tokens"] / 1e6, 1),
                steps=recipe["target_steps"],
                batch=recipe["batch_rows"] * recipe["row_length"],
                rows=recipe["row_length"],
                prompt_weight=recipe["prompt_weight"],
                polish=recipe["polish_steps"],
                align=recipe["align_steps"],
                strength=recipe["align_strength"],
                seed=recipe["seed"],
                phases=phases_text(progress),
                heldout=heldout_table(results),
                loops=loop_table(results),
                sources=table(("records", "from", "licence"), SOURCES),
                samples=samples_text(results),
            )
        )
    (draft / "README.md").write_text(
        DRAFT_CARD.format(
            parameters=f"{results['draft_parameters'] / 1e6:.2f} M",
            layers=recipe["draft_layers"],
            hidden=recipe["draft_hidden_size"],
            steps=recipe["draft_steps"],
            corpus_steps=recipe["draft_corpus_steps"],
            align=recipe["align_steps"],
            batch=recipe["draft_batch_rows"] * recipe["row_length"],
            answers=f"{recipe['answers']:,}",
            argmax_weight=recipe["argmax_weight"],
            acceptance=acceptance_table(results),
        )
    )
