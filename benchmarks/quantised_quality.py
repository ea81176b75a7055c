"""What fewer bits a weight, activation, key or value cost a model's predictions: bits per byte, and divergence.

    python -m benchmarks.quantised_quality --texts FILE.jsonl[.xz] [--model DIR] [--tokens N] [--fp8-cache]
        [--fp8-activations] [--output FILE] [OUT ...]

FILE holds a conversation (`messages`) or a `text` a line, which the model has not been trained on. OUT are quantised
forms of the model in DIR, as `slipstream quantize` writes them. Bits are those of every token after a text's first,
over the bytes of these tokens' text; the divergence is that of the original's distribution from the quantised, in nats
a token. With --fp8-cache all models are measured with keys and values of 8 bits too; with --fp8-activations each OUT,
which has weights of e4m3, also as the verify service serves it with --linear-activations fp8: by the passes of a GPU,
or, where there is none, by their twins, and beside these by the same with activations in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks.lib.report import machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from slipstream.chat_template import ChatTemplate
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel
from slipstream_kernels.models.kv_form import FLOAT, KVForm

_LONGEST = 512
"""Tokens of a text that are read."""
_PAGE_SIZE = 16

Reader = Callable[[Sequence[int]], torch.Tensor]
"""float64 log-probabilities [tokens, vocabulary] of tokens that are read at once."""


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


def reader(folder: Path, form: KVForm) -> Reader:
    """Of a model on the CPU."""
    model = CausalLM.load(folder, kv_form=form)

    def read(tokens: Sequence[int]) -> torch.Tensor:
        cache = model.new_cache(num_pages=1, page_size=len(tokens), scratch_slots=0)
        logits = model.forward(cache, RowBatch.chunk(list(tokens), 0, [0], len(tokens)))
        return torch.from_numpy(np.ascontiguousarray(logits)).double().log_softmax(1)

    return read


def pass_reader(folder: Path, *, fp8_activations: bool) -> Reader:
    """Of a model by the passes of a GPU, which decide nothing."""
    limits = GpuLimits(
        max_running=_LONGEST,
        max_nodes=1,
        step_nodes=0,
        prefill_chunk=_LONGEST,
        num_pages=-(-_LONGEST // _PAGE_SIZE),
        page_size=_PAGE_SIZE,
        max_context=min(_LONGEST, ModelConfig.from_folder(folder).max_context),
        fp8_activations=fp8_activations,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GpuModel.load(folder, limits, device=device, capture=False, progress=False)
    model.set_pages(0, 0, range(limits.num_pages))

    def read(tokens: Sequence[int]) -> torch.Tensor:
        rows = np.arange(len(tokens), dtype=np.int32)
        chunk = PassPlan.chunk(np.array(tokens, np.int32), line=0, start=0, slots=rows)
        handle = model.launch(replace(chunk, logit_rows=rows, deciding=np.zeros((0, 4), np.int32)))
        handle.results()
        return handle.logits[: len(tokens)].cpu().double().log_softmax(1)

    return read


def measure(readers: Sequence[Reader], token_lists: Sequence[Sequence[int]]) -> list[Sums]:
    """Sums of each model; the first is the original."""
    sums = [Sums() for _ in readers]
    for tokens in token_lists:
        original = readers[0](tokens)[:-1]
        following = torch.tensor(tokens[1:])[:, None]
        for total, read in zip(sums, readers, strict=True):
            found = original if read is readers[0] else read(tokens)[:-1]
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
    parser.add_argument("--fp8-activations", action="store_true")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    folders = [options.model, *options.quantised]
    token_lists, size = read_tokens(options.model, options.texts, options.tokens)
    count = sum(map(len, token_lists)) - len(token_lists)
    forms = {"": FLOAT} | ({", KV cache in fp8": KVForm(fp8=True)} if options.fp8_cache else {})
    readers = [(folder.name + name, reader(folder, form)) for name, form in forms.items() for folder in folders]
    if options.fp8_activations:
        for folder in options.quantised:
            for name, fp8 in (("bfloat16", False), ("fp8", True)):
                readers.append((f"{folder.name}, activations in {name}", pass_reader(folder, fp8_activations=fp8)))
    sums = measure([read for _, read in readers], token_lists)
    rows = []
    for (model, _), each in zip(readers, sums, strict=True):
        bits = each.nats / np.log(2) / size
        rows.append(
            {
                "model": model,
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
