"""Makes what a continuation reads, in a process of its own: `python -m training.demo_models.tool_use.prepare ...`."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.demo_models.mixture import own_records
from training.demo_models.prepare import Documents, encode_all, prompt_records, read_records
from training.demo_models.tool_use.encode import Weighted, encode_made, short_chats

HELDOUT_SEED = 7_777


@dataclass(frozen=True, slots=True)
class Prepared:
    """chats: ordinary conversations, those of `prompts` without answers. made: conversations with tools. heldout: kept.

    sources: names of the corpus's parts, by the numbers that documents have. pairs: short questions and answers.
    """

    chats: Documents
    prompts: Documents
    heldout: Documents
    made: Weighted
    sources: list[str]
    pairs: list[tuple[str, str]]

    @staticmethod
    def load(folder: Path) -> Prepared:
        """What `prepare` has written."""
        with np.load(folder / "made.npz") as arrays:
            made = Weighted(arrays["tokens"], arrays["weights"], arrays["lengths"])
        pairs = [(question, answer) for question, answer in json.loads((folder / "heldout_pairs.json").read_text())]
        return Prepared(
            Documents.load(folder / "corpus.npz"),
            Documents.load(folder / "prompts.npz"),
            Documents.load(folder / "heldout.npz"),
            made,
            json.loads((folder / "sources.json").read_text()),
            pairs,
        )


def prepare(
    corpus: Path, work: Path, tokenizer: Path, row_length: int, longest: int, seed: int, workers: int, count: int
) -> None:
    """Write corpus.npz, prompts.npz, heldout.npz, made.npz, sources.json and pairs to `work`."""
    began = time.perf_counter()
    work.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        records = read_records(corpus / "corpus.jsonl.xz")
        heldout = read_records(corpus / "heldout.jsonl.xz")
        pairs = work / "pairs.json"
        pairs.write_text(json.dumps(short_chats(records)))
        (work / "heldout_pairs.json").write_text(json.dumps(short_chats(heldout)))
        prompts = prompt_records(records, min(12_000, len(records) // 8 + 8), seed)
        records += own_records()
        sources = sorted({record["source"] for record in (*records, *heldout, *prompts)})
        (work / "sources.json").write_text(json.dumps(sources))
        shared = (str(tokenizer), sources, row_length, seed)
        encode_all(pool, (*shared, True), records).save(work / "corpus.npz")
        encode_all(pool, (*shared, True), prompts).save(work / "prompts.npz")
        encode_all(pool, (*shared, False), heldout).save(work / "heldout.npz")
        print(f"prepare: {len(records)} records of the corpus at {time.perf_counter() - began:.1f} s", flush=True)
        made = encode_made(pool, tokenizer, longest, seed, count, pairs)
    np.savez(work / "made.npz", tokens=made.tokens, weights=made.weights, lengths=made.lengths)
    print(f"prepare: {len(made.lengths)} conversations at {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    folders, numbers = [Path(argument) for argument in sys.argv[1:4]], [int(argument) for argument in sys.argv[4:9]]
    prepare(folders[0], folders[1], folders[2], *numbers)
