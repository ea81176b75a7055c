"""What the suffix and n-gram structures cost, on one core: time of each call, memory, pauses.

    python -m benchmarks.suffix_speed [--requests 1000] [--prompt 500] [--response 500] [--output FILE]

Texts are random tokens in which phrases of 5 to 40 tokens return, a few of them often (Zipf). The prompts and responses
of all requests are cached as one tree, filled to its limit; other requests with the same phrases are then drafted for,
token by token, and further ones are cached, which evicts the oldest. Times of calls are wall clock; on a busy machine
read the medians. A pause is given as the CPU time of the longest piece of work too, which no other process lengthens.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.lib.report import machine, markdown_table, write_json
from draft_service.proposers.base import DraftRequest, Opening, Proposer
from draft_service.proposers.ngram.ngram import NgramConfig, NgramProposer
from draft_service.proposers.suffix.cache import PIECE, SuffixCache
from draft_service.proposers.suffix.search import SuffixSearch
from draft_service.proposers.suffix.suffix import SuffixConfig, SuffixProposer
from draft_service.proposers.suffix.tree import SuffixTree

Tokens = npt.NDArray[np.int32]
KEY = ("tenant", "")
VOCABULARY = 32_000
NGRAM_CONTEXT = 8_000
DRAFTED = 40
"""Requests that are drafted for."""


class Texts:
    """Random texts with phrases in common."""

    def __init__(self, seed: int, phrases: int = 2000, repeated: float = 0.7) -> None:
        self.draw = np.random.default_rng(seed)
        self.repeated = repeated
        self.phrases = [self._fresh(5, 40) for _ in range(phrases)]
        shares = 1 / np.arange(1, phrases + 1)
        self.shares = np.cumsum(shares / shares.sum())

    def text(self, length: int) -> Tokens:
        parts: list[Tokens] = []
        while sum(map(len, parts)) < length:
            again = self.draw.random() < self.repeated
            pick = int(np.searchsorted(self.shares, self.draw.random())) % len(self.phrases)
            parts.append(self.phrases[pick] if again else self._fresh(5, 20))
        return np.concatenate(parts)[:length]

    def _fresh(self, least: int, most: int) -> Tokens:
        return self.draw.integers(0, VOCABULARY, self.draw.integers(least, most)).astype(np.int32)


class Figures:
    """Seconds by what took them: wall clock, and CPU time of this thread."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.busy: dict[str, list[float]] = {}

    @contextmanager
    def time(self, what: str, units: int = 1) -> Iterator[None]:
        """Note how long the body took for each of `units`; about a microsecond of that is the measuring itself."""
        busy, wall = time.thread_time(), time.perf_counter()
        yield
        wall, busy = time.perf_counter() - wall, time.thread_time() - busy
        self.wall.setdefault(what, []).append(wall / units)
        self.busy.setdefault(what, []).append(busy / units)

    def rows(self) -> Iterator[list[object]]:
        for what, wall in self.wall.items():
            quantiles = [float(np.quantile(wall, q)) * 1e6 for q in (0.5, 0.9, 0.99, 1.0)]
            yield [what, len(wall), *quantiles, max(self.busy[what]) * 1e6]


HEADER = ("microseconds", "calls", "median", "p90", "p99", "longest", "longest, CPU time")


def fill(figures: Figures, cache: SuffixCache, texts: Sequence[Tokens]) -> None:
    """Cache texts."""
    for text in texts:
        cache.add(KEY, text)
        more = True
        while more:
            before = cache.evicting
            with figures.time("piece of eviction" if before else "piece of caching"):
                more = cache.advance()


def draft(figures: Figures, cache: SuffixCache, texts: Texts, options: argparse.Namespace) -> dict[str, float]:
    """Requests of the same phrases, token by token; returns what was found on average."""
    searches = [SuffixSearch(as_tree=tree, factor=1.0, offset=0.0, min_prob=0.1) for tree in (False, True)]
    found: list[tuple[int, int, int]] = []
    for number in range(DRAFTED):
        text, step = texts.text(options.prompt + options.response), (1, 4)[number % 2]
        tree = SuffixTree(options.depth, tokens=len(text))
        tree.stage(0, text[: options.prompt])
        with figures.time("append a token of a prompt", options.prompt):
            tree.append(options.prompt)
        for begin in range(options.prompt, len(text) - step, step):
            with figures.time(f"append a token, {step} a call", step):
                tree.stage(begin, text[begin : begin + step])
                tree.append(step)
            with figures.time("speculate, path"):
                path = searches[0](tree.memory.address, cache.address(KEY), 63, 63)
            with figures.time("speculate, tree"):
                whole = searches[1](tree.memory.address, cache.address(KEY), 63, 63)
            found.append((searches[0].match_length, len(path or ()), len(whole or ())))
    return dict(zip(("match length", "path nodes", "tree nodes"), np.mean(found, axis=0).tolist(), strict=True))


def propose(figures: Figures, proposer: Proposer, text: Tokens, prompt: int, tenant: str = "") -> None:
    """One request as the draft service runs it, four tokens a step."""
    tokens = text.tolist()
    proposer.open(1, Opening(tokens[:prompt], prompt, tenant=tenant))
    while proposer.advance():
        pass
    for begin in range(prompt, len(tokens) - 4, 4):
        with figures.time(f"{proposer.name}: commit"):
            proposer.commit(1, tokens[begin : begin + 4])
        with figures.time(f"{proposer.name}: propose"):
            proposer.propose([DraftRequest(1, 64, 63)])
    proposer.close(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status says nothing about speed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suffix_speed", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=1000, help="requests that are cached")
    parser.add_argument("--prompt", type=int, default=500, help="tokens of a prompt")
    parser.add_argument("--response", type=int, default=500, help="tokens of a response")
    parser.add_argument("--depth", type=int, default=64, help="max_tree_depth")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    figures, texts, length = Figures(), Texts(0), options.prompt + options.response
    proposer = SuffixProposer(
        "suffix", SuffixConfig(max_tree_depth=options.depth, max_cached_requests=options.requests)
    )
    ngram = NgramProposer("ngram", NgramConfig())
    cached = [texts.text(length) for _ in range(options.requests)]
    resident = _resident()
    fill(figures, proposer.cache, cached)
    memory = {
        "cached tokens": proposer.cache.tokens,
        "mapped bytes a cached token": proposer.cache.size / proposer.cache.tokens,
        "resident bytes a cached token": (_resident() - resident) / proposer.cache.tokens,
    }
    found = draft(figures, proposer.cache, texts, options)
    propose(figures, proposer, texts.text(length), options.prompt, KEY[0])
    propose(figures, ngram, texts.text(NGRAM_CONTEXT + 2000), NGRAM_CONTEXT)
    fill(figures, proposer.cache, [texts.text(length) for _ in range(options.requests // 5)])
    print(markdown_table(HEADER, list(figures.rows())))
    print()
    print(markdown_table(("what", "figure"), [*memory.items(), *found.items()]))
    print(f"\npieces are of {PIECE} tokens; depth {options.depth}; {machine()}")
    if options.output:
        rows = [dict(zip(HEADER, row, strict=True)) for row in figures.rows()]
        write_json(options.output, {"machine": machine(), "times": rows, "memory": memory, "found": found})
    return 0


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
