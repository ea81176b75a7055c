"""Acceptance length of proposers on recorded answers: what a target that says exactly these would accept.

    python -m benchmarks.proposer_replay FILE... [--rows 9,17,33] [--limit 150] [--output FILE]

A file is a workload: records of a question and its answer, or agents' runs, of which every assistant's message is an
answer to those before it (`prompt_files`). Requests run one after another in the order of the file, so past responses
are those before; "mixed" is all of them, shuffled.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tqdm import tqdm

from benchmarks.lib.prompt_files import Record, databases_beside, exchange, records, trajectory
from benchmarks.lib.report import machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from draft_service.proposers.base import DraftRequest, Opening, Proposer, Target
from draft_service.proposers.registry import ProposerSpec, load_proposers

LONGEST = 9_000
"""Tokens of the longest context."""
SETS: dict[str, tuple[str, ...]] = {
    "ngram": ("ngram",),
    "suffix, path": ("suffix:mode=path",),
    "suffix": ("suffix",),
    "hybrid of both": ("suffix", "ngram", "hybrid"),
    "suffix, factor 4": ("suffix:max_spec_factor=4",),
    "hybrid of both, factor 4": ("suffix:max_spec_factor=4", "ngram", "hybrid"),
}
"""What is compared: proposers of one process, the last of which drafts."""


@dataclass(frozen=True, slots=True)
class Request:
    """Token ids of a context and of what was answered."""

    prompt: list[int]
    answer: list[int]


def read(path: Path, tokenizer: Tokenizer, limit: int) -> list[Request]:
    """The first `limit` requests of a file. Raises KeyError for records of another form."""
    databases = databases_beside(path)
    requests: list[Request] = []
    for record in records(path):
        requests.extend(_requests(record, tokenizer, databases))
        if len(requests) >= limit:
            break
    return [request for request in requests if request.prompt and request.answer][:limit]


def _requests(record: Record, tokenizer: Tokenizer, databases: dict[str, str]) -> Iterator[Request]:
    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    messages = trajectory(record)
    if not messages:
        question, answer = exchange(record, databases)
        yield Request(ids(question), ids(answer))
    context: list[int] = []
    for role, content in messages:
        said = ids(f"{role}: {content}\n")
        if role == "assistant" and len(context) < LONGEST:
            yield Request(list(context), said)
        context += said


def replay(specs: Sequence[str], requests: Sequence[Request], rows: int) -> tuple[float, float]:
    """Tokens a step, the bonus token included, and nodes drafted a step, with trees of at most `rows` rows."""
    parsed = [ProposerSpec.parse(spec) for spec in specs]
    proposers = load_proposers(parsed, threads=1, max_nodes=rows, max_depth=min(rows - 1, 32))
    for proposer in proposers:
        proposer.bind(Target(2**31 - 1, "", 2**31 - 1))
    tokens = steps = nodes = 0
    for session, request in enumerate(requests, start=1):
        proposers[-1].open(session, Opening(request.prompt, len(request.prompt)))
        _settle(proposers)
        done = 0
        while done < len(request.answer):
            (tree,) = proposers[-1].propose([DraftRequest(session, rows, rows - 1)])
            decided: Sequence[int] = request.answer[done : done + 1]
            if tree is not None:
                truth = [*request.answer[done : done + rows + 1], *[-1] * rows]
                _, decided = tree.walk(truth[0], [truth[depth] for depth in tree.depths])
                nodes += len(tree)
            decided = decided[: len(request.answer) - done]
            proposers[-1].commit(session, decided)
            done += len(decided)
            tokens += len(decided)
            steps += 1
        proposers[-1].close(session)
        _settle(proposers)
    return tokens / max(steps, 1), nodes / max(steps, 1)


def _settle(proposers: Sequence[Proposer]) -> None:
    """Let background work end, as it does while a target computes."""
    while any([proposer.advance() for proposer in proposers]):  # noqa: C419 (each takes its turn)
        pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay and print; the exit status says nothing about acceptance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proposer_replay", description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", type=Path, nargs="+", help="workloads")
    parser.add_argument("--tokenizer", type=Path, default=DEMO_MODEL / "tokenizer.json")
    parser.add_argument("--rows", default="9,17,33", help="rows of the largest tree, root included")
    parser.add_argument("--limit", type=int, default=150, help="answers of each file")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    workloads = {path.name.split(".")[0]: read(path, tokenizer, options.limit) for path in options.files}
    mixed = [request for requests in workloads.values() for request in requests]
    random.Random(0).shuffle(mixed)
    workloads["mixed"] = mixed
    budgets = [int(rows) for rows in options.rows.split(",")]
    results: list[list[object]] = []
    with tqdm(total=len(budgets) * len(workloads) * len(SETS), desc="replays") as bar:
        for rows in budgets:
            for name, requests in workloads.items():
                figures: list[object] = []
                for specs in SETS.values():
                    accepted, drafted = replay(specs, requests, rows)
                    figures.append(f"{accepted:.2f} ({drafted:.1f})")
                    bar.update()
                results.append([rows, name, len(requests), *figures])
    header = ("rows", "workload", "answers", *SETS)
    print(markdown_table(header, results))
    print("\ntokens a step, the bonus token included (nodes drafted a step)")
    if options.output:
        content = [dict(zip(header, row, strict=True)) for row in results]
        write_json(options.output, {"machine": machine(), "tokens_a_step": content})
    return 0


if __name__ == "__main__":
    sys.exit(main())
