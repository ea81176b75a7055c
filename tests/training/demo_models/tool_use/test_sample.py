"""A sample of the corpus that travels."""

import json
import lzma
from collections import Counter
from pathlib import Path

from training.demo_models.tool_use.sample import main, sampled


def _lines(count: int) -> list[bytes]:
    sources = ("small-chitchat-seed", "rust-book", "never-heard-of")
    return [json.dumps({"source": sources[number % 3], "number": number}).encode() + b"\n" for number in range(count)]


def test_sources_are_kept_as_often_as_they_are_read() -> None:
    lines = _lines(6000)
    kept = list(sampled(lines, 0.1, 3))
    assert kept == list(sampled(lines, 0.1, 3)) != list(sampled(lines, 0.1, 4))
    count = Counter(json.loads(line)["source"] for line in kept)
    assert count["small-chitchat-seed"] == 2000  # read sixteen times
    assert 30 <= count["rust-book"] <= 95  # 0.3 times
    assert 150 <= count["never-heard-of"] <= 250  # once


def test_the_sample_is_a_corpus_with_all_that_is_held_out(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    for name in ("corpus", "heldout"):
        with lzma.open(corpus / f"{name}.jsonl.xz", "wb") as stream:
            stream.writelines(_lines(300))
    main(["--corpus", str(corpus), "--out", str(out), "--share", "0.1"])
    with lzma.open(out / "corpus.jsonl.xz", "rb") as stream:
        assert stream.read().splitlines(keepends=True) == list(sampled(_lines(300), 0.1, 0))
    assert (out / "heldout.jsonl.xz").read_bytes() == (corpus / "heldout.jsonl.xz").read_bytes()
