"""A part of the corpus that is small enough to travel: `python -m training.demo_models.tool_use.sample ...`.

Each source is kept in proportion to how often it is read, so that a continuation reads about the same mixture.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from training.demo_models.mixture import ANNEAL_PASSES


def sampled(lines: Iterable[bytes], share: float, seed: int) -> Iterator[bytes]:
    """Lines of JSON, each kept with a probability of `share` times the passes over its source, 1 at most."""
    choose = Random(seed)
    for line in lines:
        if choose.random() < share * ANNEAL_PASSES.get(json.loads(line)["source"], 1.0):
            yield line


def sample(corpus: Path, out: Path, share: float, seed: int) -> int:
    """Write corpus.jsonl.xz and heldout.jsonl.xz, which is kept whole, to `out`; the former's size in bytes."""
    out.mkdir(parents=True, exist_ok=True)
    target = out / "corpus.jsonl.xz"
    with lzma.open(corpus / "corpus.jsonl.xz", "rb") as lines, lzma.open(target, "wb", preset=9) as kept:
        for line in sampled(lines, share, seed):
            kept.write(line)
    shutil.copyfile(corpus / "heldout.jsonl.xz", out / "heldout.jsonl.xz")
    return target.stat().st_size


def main(arguments: list[str] | None = None) -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m training.demo_models.tool_use.sample", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="directory with corpus.jsonl.xz, heldout.jsonl.xz")
    parser.add_argument("--out", type=Path, required=True, help="directory that receives both")
    parser.add_argument("--share", type=float, default=0.1, help="of a source that is read once (default 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parsed = parser.parse_args(arguments)
    size = sample(parsed.corpus, parsed.out, parsed.share, parsed.seed)
    print(f"{parsed.out}: {size / 1e6:.1f} MB of the corpus")


if __name__ == "__main__":
    main()
