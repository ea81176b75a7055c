"""What a run is judged by: held-out loss, loops, acceptance length of the draft, sample answers."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from training.common.attention_masks import dense_mask
from training.common.model import CausalLM
from training.demo_models.data import batches, to_corpus
from training.demo_models.prepare import KINDS, Documents, repeats_ngram
from training.demo_models.sampler import cut, generate, groups
from training.demo_models.tokenizer import chat_prompt, stop_ids

SAMPLE_CONVERSATIONS: Final = (
    ("", "Hello! Who are you?"),
    ("", "What is the capital of France?"),
    ("", "Write a Python function that returns the sum of a list of numbers."),
    ("", "Tom has 12 apples. He gives 5 to Anna and buys 3 more. How many apples does he have?"),
    ("You are a helpful assistant.", "What is a good way to learn to cook?"),
    ("", "Explain what a computer program is."),
    ("", "Give me three tips for sleeping well."),
    ("Be concise.", "Why is the sky blue?"),
    ("", "What does the word 'brave' mean?"),
    ("", "How do I list all files in a directory on Linux?"),
    ("", "Write a short story about a dog."),
    ("You are a friendly chat partner.", "I had a bad day today."),
    ("", "Is a tomato a fruit or a vegetable?"),
    ("", "Write a Python function `is_prime(n)`."),
)


@torch.inference_mode()
def token_losses(
    model: CausalLM, documents: Documents, row_length: int, prompts: bool, device: str
) -> npt.NDArray[Any]:
    """Per document: summed nats and number of predicted tokens, float64 [D, 2]; of answers and text alone, or all."""
    corpus = to_corpus(documents, 1.0 if prompts else 0.0, device)
    order = np.arange(len(documents.lengths))
    sums = torch.zeros(len(order) + 1, 2, dtype=torch.float64, device=device)
    for batch in batches(corpus, order, 8, row_length, 0.0, 0, keep_last=True):
        logits = model(batch.tokens, dense_mask(batch.documents)).float()
        nll = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
        weights = batch.weights.flatten()
        columns = torch.stack((nll * weights, weights), dim=1).double()
        number = batch.documents.flatten().long()
        sums.index_add_(0, torch.where(number > len(order), 0, number), columns)
    result: npt.NDArray[Any] = sums[1:].cpu().numpy()
    return result


def heldout_report(model: CausalLM, documents: Documents, row_length: int, device: str) -> dict[str, Any]:
    """Nats a token and bits a byte by kind and overall: of the whole text ("all") and of answers alone ("answers")."""
    report: dict[str, Any] = {}
    for what, prompts, sizes in (("all", True, documents.content_bytes), ("answers", False, documents.answer_bytes)):
        losses = token_losses(model, documents, row_length, prompts, device)
        rows: dict[str, Any] = {}
        for name, chosen in [(kind, documents.kinds == index) for index, kind in enumerate(KINDS)] + [
            ("overall", np.ones(len(losses), dtype=np.bool_))
        ]:
            nats, tokens = losses[chosen].sum(axis=0)
            if tokens:
                bits = nats / math.log(2) / int(sizes[chosen].sum())
                rows[name] = {"nats_per_token": round(nats / tokens, 4), "bits_per_byte": round(bits, 4)}
        report[what] = rows
    return report


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """One prompt of an evaluation set."""

    category: str
    messages: list[dict[str, str]]


def read_prompts(path: Path) -> list[EvalPrompt]:
    """Prompts of a Spec-Bench file (first turns) or of a file of messages with their source."""
    prompts = []
    for line in filter(None, path.read_text(encoding="utf-8").split("\n")):
        record = json.loads(line)
        messages = record.get("messages") or [{"role": "user", "content": record["turns"][0]}]
        prompts.append(EvalPrompt(record.get("category") or record["source"], messages))
    return prompts


@torch.inference_mode()
def agreement(draft: CausalLM, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[list[bool]]:
    """For each answer's tokens from the second on, whether the draft guesses it (greedy)."""
    device = draft.cos.device
    found: list[list[bool]] = [[] for _ in prompts]
    for group in groups([len(prompt) for prompt in prompts], 64, 100_000):
        whole = [prompts[index] + answers[index] for index in group]
        width = max(map(len, whole))
        tokens = torch.tensor([ids + [0] * (width - len(ids)) for ids in whole], device=device)
        right = draft(tokens[:, :-1]).argmax(dim=-1) == tokens[:, 1:]
        for index, ids, row in zip(group, whole, right.tolist(), strict=True):
            found[index] = row[len(prompts[index]) : len(ids) - 1]
    return found


def chain_steps(hits: Sequence[bool], depth: int) -> int:
    """Verify steps to produce len(hits) tokens after the first, with chains of `depth` drafted tokens.

    The chain is right up to its first miss, where its guesses equal those made after the true tokens.
    """
    position, steps = 0, 0
    while position < len(hits):
        accepted = 0
        while accepted < depth and position + accepted < len(hits) and hits[position + accepted]:
            accepted += 1
        position += accepted + 1
        steps += 1
    return steps


def acceptance_report(
    target: CausalLM, draft: CausalLM, tokenizer: Tokenizer, path: Path, depth: int = 4
) -> dict[str, Any]:
    """Greedy answers: tokens a verify step by category (64 new tokens), and loops in answers of up to 256 tokens."""
    prompts = read_prompts(path)
    ids = [chat_prompt(tokenizer, prompt.messages) for prompt in prompts]
    stops = stop_ids(tokenizer)
    long = generate(target, ids, [0.0] * len(ids), 256, stops, 0)
    short = [answer[:64] for answer in long]
    hits = agreement(draft, ids, short)
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for prompt, answer, hit in zip(prompts, short, hits, strict=True):
        steps = chain_steps(hit, depth)
        names = ["overall", prompt.category] + ([] if repeats_ngram(answer) else ["without loops"])
        for name in names:
            totals[name][0] += len(hit)
            totals[name][1] += steps
    lengths = {name: round(tokens / steps, 3) for name, (tokens, steps) in sorted(totals.items()) if steps}
    return {
        "acceptance_length": lengths,
        "repeats_16gram_in_64": round(sum(map(repeats_ngram, short)) / len(short), 4),
        "repeats_16gram_in_256": round(sum(map(repeats_ngram, long)) / len(long), 4),
        "ended_within_256": round(sum(answer[-1] in stops for answer in long) / len(long), 4),
        "mean_answer_tokens": round(sum(map(len, long)) / len(long), 1),
    }


def sample_answers(target: CausalLM, tokenizer: Tokenizer) -> list[dict[str, str]]:
    """Greedy answers to the fixed conversations."""
    stops = stop_ids(tokenizer)
    conversations = [
        ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": question}]
        for system, question in SAMPLE_CONVERSATIONS
    ]
    ids = [chat_prompt(tokenizer, conversation) for conversation in conversations]
    answers = generate(target, ids, [0.0] * len(ids), 256, stops, 0)
    samples = []
    for (system, question), answer in zip(SAMPLE_CONVERSATIONS, answers, strict=True):
        ended = answer[-1] in stops
        text = tokenizer.decode(cut(answer, stops)[: -1 if ended else None])
        samples.append({"system": system, "user": question, "assistant": text, "ended": "yes" if ended else "no"})
    return samples
