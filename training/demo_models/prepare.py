"""From compressed records to a tokenizer and flat token arrays on disk. Runs in a process of its own, without torch."""

import json
import lzma
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from training.demo_models.mixture import SYSTEM_PROMPTS, SYSTEM_SHARE, instructed_texts, own_records
from training.demo_models.tokenizer import BEGIN, END_OF_TEXT, END_OF_TURN, ROLES, token_id, train_tokenizer

PROMPT: Final = 0
ANSWER: Final = 1
KINDS: Final = ("chat", "math", "code", "text", "prompt")
TOKENIZER_SHARE: Final = {"chat": 0.5, "math": 0.15, "code": 0.2, "text": 0.5}


@dataclass(frozen=True, slots=True)
class Documents:
    """Tokenised records, one after another.

    tokens uint16 [N]; types uint8 [N] (PROMPT or ANSWER); lengths int32 [D]; sources and kinds uint8 [D] (indices);
    longest_answer int32 [D]; loops bool [D] (an answer repeats a 16-gram); content_bytes and answer_bytes int32 [D].
    """

    tokens: npt.NDArray[np.uint16]
    types: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.int32]
    sources: npt.NDArray[np.uint8]
    kinds: npt.NDArray[np.uint8]
    longest_answer: npt.NDArray[np.int32]
    loops: npt.NDArray[np.bool_]
    content_bytes: npt.NDArray[np.int32]
    answer_bytes: npt.NDArray[np.int32]

    def save(self, path: Path) -> None:
        np.savez(path, **{field.name: getattr(self, field.name) for field in fields(self)})

    @staticmethod
    def load(path: Path) -> "Documents":
        with np.load(path) as arrays:
            return Documents(**{field.name: arrays[field.name] for field in fields(Documents)})

    @staticmethod
    def concatenate(parts: list["Documents"]) -> "Documents":
        joined = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Documents)}
        return Documents(**joined)


def repeats_ngram(tokens: list[int], size: int = 16) -> bool:
    """Whether any run of `size` tokens occurs twice."""
    seen: set[tuple[int, ...]] = set()
    for start in range(len(tokens) - size + 1):
        gram = tuple(tokens[start : start + size])
        if gram in seen:
            return True
        seen.add(gram)
    return False


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records of an xz-compressed file of JSON lines."""
    with lzma.open(path, "rb") as stream:
        return [json.loads(line) for line in stream.read().splitlines()]


def contents(record: dict[str, Any]) -> list[str]:
    """The texts of a record, in order."""
    return [record["text"]] if "text" in record else [message["content"].strip() for message in record["messages"]]


class Encoder:
    """Turns records into Documents. One per worker process."""

    def __init__(
        self, tokenizer_path: str, sources: list[str], row_length: int, seed: int, system_prompts: bool
    ) -> None:
        self.tokenizer = Tokenizer.from_file(tokenizer_path)
        self.sources = {name: index for index, name in enumerate(sources)}
        self.row_length = row_length
        self.seed = seed
        self.system_prompts = system_prompts
        self.begin = token_id(self.tokenizer, BEGIN)
        self.end_of_text = token_id(self.tokenizer, END_OF_TEXT)
        self.end_of_turn = token_id(self.tokenizer, END_OF_TURN)
        self.roles = {role: token_id(self.tokenizer, f"<|{role}|>") for role in ROLES}

    def encode(self, first: int, records: list[dict[str, Any]]) -> Documents:
        """Tokenise records whose running number starts at `first`; the number seeds the choice of a system prompt."""
        texts = [text for record in records for text in contents(record)]
        encoded = iter([e.ids for e in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)])
        system = [e.ids for e in self.tokenizer.encode_batch_fast(list(SYSTEM_PROMPTS), add_special_tokens=False)]
        rows: list[tuple[list[int], list[int], dict[str, Any], tuple[int, bool, int, int]]] = []
        for number, record in enumerate(records, start=first):
            if "text" in record:
                rows += [(ids, types, record, facts) for ids, types, facts in self._text(record["text"], next(encoded))]
                continue
            chosen: list[int] | None = None
            choose = random.Random(self.seed * 1_000_003 + number)
            if self.system_prompts and record["messages"][0]["role"] != "system" and choose.random() < SYSTEM_SHARE:
                chosen = choose.choice(system)
            rows.append(self._chat(record, encoded, chosen))
        return self._join(rows)

    def _text(self, text: str, ids: list[int]) -> Iterator[tuple[list[int], list[int], tuple[int, bool, int, int]]]:
        size = self.row_length - 2
        whole = len(text.encode())
        for start in range(0, len(ids), size):
            piece = ids[start : start + size]
            ending = [self.end_of_text] if start + size >= len(ids) else []
            share = whole * len(piece) // len(ids)
            tokens = [self.begin, *piece, *ending]
            yield tokens, [PROMPT] + [ANSWER] * (len(tokens) - 1), (0, False, share, share)

    def _chat(
        self, record: dict[str, Any], encoded: Iterator[list[int]], system: list[int] | None
    ) -> tuple[list[int], list[int], dict[str, Any], tuple[int, bool, int, int]]:
        tokens, types = [self.begin], [PROMPT]
        if system is not None:
            tokens += [self.roles["system"], *system, self.end_of_turn]
            types += [PROMPT] * (len(system) + 2)
        longest, loops, content_bytes, answer_bytes = 0, False, 0, 0
        for message in record["messages"]:
            ids, size = next(encoded), len(message["content"].strip().encode())
            answer = message["role"] == "assistant"
            tokens += [self.roles[message["role"]], *ids, self.end_of_turn]
            types += [PROMPT, *[ANSWER if answer else PROMPT] * (len(ids) + 1)]
            content_bytes += size
            if answer:
                longest, answer_bytes = max(longest, len(ids)), answer_bytes + size
                loops = loops or repeats_ngram(ids)
        return tokens, types, record, (longest, loops, content_bytes, answer_bytes)

    def _join(self, rows: list[tuple[list[int], list[int], dict[str, Any], tuple[int, bool, int, int]]]) -> Documents:
        facts = [row[3] for row in rows]
        return Documents(
            tokens=np.array([token for row in rows for token in row[0]], dtype=np.uint16),
            types=np.array([kind for row in rows for kind in row[1]], dtype=np.uint8),
            lengths=np.array([len(row[0]) for row in rows], dtype=np.int32),
            sources=np.array([self.sources[row[2]["source"]] for row in rows], dtype=np.uint8),
            kinds=np.array([KINDS.index(row[2]["kind"]) for row in rows], dtype=np.uint8),
            longest_answer=np.array([fact[0] for fact in facts], dtype=np.int32),
            loops=np.array([fact[1] for fact in facts], dtype=np.bool_),
            content_bytes=np.array([fact[2] for fact in facts], dtype=np.int32),
            answer_bytes=np.array([fact[3] for fact in facts], dtype=np.int32),
        )


def encode_chunk(
    arguments: tuple[str, list[str], int, int, bool], first: int, records: list[dict[str, Any]]
) -> Documents:
    """One task of the pool."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return Encoder(*arguments).encode(first, records)


def encode_all(
    pool: ProcessPoolExecutor, arguments: tuple[str, list[str], int, int, bool], records: list[dict[str, Any]]
) -> Documents:
    """Tokenise in chunks over the pool; the result does not depend on the number of workers."""
    size = 8192
    starts = range(0, len(records), size)
    tasks = [pool.submit(encode_chunk, arguments, start, records[start : start + size]) for start in starts]
    return Documents.concatenate([task.result() for task in tasks])


def tokenizer_texts(records: list[dict[str, Any]], seed: int) -> Iterator[str]:
    """A sample of the corpus for the tokenizer, weighted by kind."""
    choose = random.Random(seed)
    for record in records:
        if choose.random() < TOKENIZER_SHARE[record["kind"]]:
            yield from contents(record)


def prompt_records(records: list[dict[str, Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """Instructions over running text, made of the corpus's own passages and questions."""
    texts = [record["text"] for record in records if record["kind"] == "text"]
    questions = [r["messages"][0]["content"] for r in records if r["source"] == "opentriviaqa"]
    dolly = [r["messages"][0]["content"] for r in records if r["source"] == "dolly-15k"]
    texts += [text for text in dolly if len(text) > 400]
    return list(instructed_texts(texts, [q.split("\n")[0] for q in questions], count, seed))


def prepare(
    corpus: Path, work: Path, vocab_size: int, row_length: int, seed: int, workers: int, tokenizer: Path | None = None
) -> None:
    """Write tokenizer.json (trained, or a copy), sources.json, corpus.npz, prompts.npz and heldout.npz to `work`."""
    began = time.perf_counter()

    def report(what: str) -> None:
        print(f"prepare: {what} at {time.perf_counter() - began:.1f} s", flush=True)

    work.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        records = read_records(corpus / "corpus.jsonl.xz")
        heldout = read_records(corpus / "heldout.jsonl.xz")
        report(f"read {len(records)} records")
        prompts = prompt_records(records, min(24_000, len(records) // 8 + 8), seed)
        records += own_records()
        sources = sorted({record["source"] for record in (*records, *heldout, *prompts)})
        (work / "sources.json").write_text(json.dumps(sources))
        path = str(work / "tokenizer.json")
        if tokenizer is None:
            train_tokenizer(tokenizer_texts(records, seed), vocab_size).save(path)
            report("trained the tokenizer")
        else:
            shutil.copyfile(tokenizer, path)
        encode_all(pool, (path, sources, row_length, seed, True), records).save(work / "corpus.npz")
        encode_all(pool, (path, sources, row_length, seed, True), prompts).save(work / "prompts.npz")
        encode_all(pool, (path, sources, row_length, seed, False), heldout).save(work / "heldout.npz")
    report("tokenised")


if __name__ == "__main__":
    sizes = [int(argument) for argument in sys.argv[3:7]]
    given = Path(sys.argv[7]) if len(sys.argv) > 7 else None
    prepare(Path(sys.argv[1]), Path(sys.argv[2]), sizes[0], sizes[1], sizes[2], sizes[3], given)
