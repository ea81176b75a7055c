"""What fewer bits a weight, key or value cost a model's predictions: bits per byte, and divergence from the original.

    python -m benchmarks.quantised_quality --texts FILE.jsonl[.xz] [--model DIR] [--tokens N] [--fp8-cache]
        [--output FILE] [OUT ...]

FILE holds a conversation (`messages`) or a `text` a line, which the model has not been trained on. OUT are quantised
forms of the model in DIR, as `slipstream quantize` writes them. Bits are those of every token after a text's first,
over the bytes of these tokens' text; the divergence is that of the original's distribution from the quantised, in nats
a token. With --fp8-cache all models are measured with keys and values of 8 bits too.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks.lib.report import machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from slipstream.chat_template import ChatTemplate
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.models.kv_form import FLOAT, KVForm

_LONGEST = 512
"""Tokens of a text that are read."""


@dataclass(slots=True)
class Sums:
    """Of one model over all texts: nats of the tokens, nats of divergence, tokens whose likeliest is the original's."""

    nats: float = 0.0
    divergence: float = 0.0
    same: int = 0


def texts_of(path: Path, template: ChatTemplate | None) -> Iterator[str]:
    """The texts of a file, conversations in the model's own form."""
    raw = path.read_bytes()
    content = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode()
    for line in content.split("\n"):
        if line.strip():
            record = json.loads(line)
            if "messages" in record and template is not None:
                yield template.render(record["messages"], add_generation_prompt=False)
            elif "text" in record:
                yield record["text"]


def logits_of(model: CausalLM, tokens: Sequence[int]) -> torch.Tensor:
    """float64 log-probabilities [tokens, vocabulary], read at once."""
    cache = model.new_cache(num_pages=1, page_size=len(tokens), scratch_slots=0)
    logits = model.forward(cache, RowBatch.chunk(list(tokens), 0, [0], len(tokens)))
    return torch.from_numpy(np.ascontiguousarray(logits)).double().log_softmax(1)


def measure(models: Sequence[CausalLM], token_lists: Sequence[Sequence[int]]) -> list[Sums]:
    """Sums of each model; the first is the original."""
    sums = [Sums() for _ in models]
    for tokens in token_lists:
        original = logits_of(models[0], tokens)[:-1]
        following = torch.tensor(tokens[1:])[:, None]
        for total, model in zip(sums, models, strict=True):
            found = original if model is models[0] else logits_of(model, tokens)[:-1]
            total.nats -= float(found.gather(1, following).sum())
            total.divergence += float((original.exp() * (original - found)).sum())
            total.same += int((found.argmax(1) == original.argmax(1)).sum())
    return sums


def read_tokens(folder: Path, texts: Path, most: int) -> tuple[list[list[int]], int]:
    """Token ids of texts up to `most` of them, and the bytes of all but each text's first token."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lists: list[list[int]] = []
    size = 0
    for text in texts_of(texts, ChatTemplate.from_folder(folder)):
        tokens = tokenizer.encode(text, add_special_tokens=False).ids[:_LONGEST]
        if len(tokens) > 1:
            lists.append(tokens)
            size += len(tokenizer.decode(tokens[1:], skip_special_tokens=False).encode())
        if sum(map(len, lists)) >= most:
            break
    return lists, size


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quantised", nargs="*", type=Path, metavar="OUT")
    parser.add_argument("--fp8-cache", action="store_true")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    folders = [options.model, *options.quantised]
    token_lists, size = read_tokens(options.model, options.texts, options.tokens)
    count = sum(map(len, token_lists)) - len(token_lists)
    forms = {"": FLOAT} | ({", KV cache in fp8": KVForm(fp8=True)} if options.fp8_cache else {})
    kinds = [(folder, name) for name in forms for folder in folders]
    sums = measure([CausalLM.load(folder, kv_form=forms[name]) for folder, name in kinds], token_lists)
    rows = []
    for (folder, form), each in zip(kinds, sums, strict=True):
        bits = each.nats / np.log(2) / size
        rows.append(
            {
                "model": folder.name + form,
                "bits_per_byte": bits,
                "more_than_original": each.nats / sums[0].nats - 1,
                "mean_divergence_nats": each.divergence / count,
                "same_likeliest": each.same / count,
            }
        )
    header = ["model", "bits per byte", "more", "mean KL, nats", "same likeliest token"]
    cells = [[row["model"], *(f"{row[name]:{digits}}" for name, digits in _COLUMNS)] for row in rows]
    print(markdown_table(header, cells))
    print(f"\n{count} tokens, {size} bytes of {len(token_lists)} texts.")
    if options.output:
        write_json(options.output, {"machine": machine(), "tokens": count, "bytes": size, "rows": rows})
    return 0


_COLUMNS = (
    ("bits_per_byte", ".4f"),
    ("more_than_original", "+.2%"),
    ("mean_divergence_nats", ".5f"),
    ("same_likeliest", ".2%"),
)

if __name__ == "__main__":
    sys.exit(main())
