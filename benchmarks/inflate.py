"""Widens a small model to the tensor shapes of a large one without changing what it computes, and its EAGLE-3 head.

    python -m benchmarks.inflate OUTPUT [--model FOLDER] [--random] [--hidden N] [--layers N] ...
    python -m benchmarks.inflate OUTPUT --head FOLDER [--model FOLDER] [--own-embedding] [--hidden N] ...

OUTPUT becomes a Hugging Face folder that any engine can serve: the text, and with it the acceptance of drafts, is the
small model's, the cost of a step is the large one's. The shapes are Llama-3.1-8B's (16.1 GB) unless flags say
otherwise. With --random all weights are random instead: a stream that is mostly zeros hides errors of summation order
and flatters timings that are bound by arithmetic. With --head, a folder with a head that was trained for the model,
OUTPUT becomes the widened model's head, which borrows the model's embedding unless --own-embedding adds it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from benchmarks.inflate_head import DRAFT_VOCAB, HeadInflation, HeadSource, RandomHead
from benchmarks.inflate_shape import LLAMA_8B, Shape, ShapeError
from benchmarks.inflate_tensors import TensorSource, source_of
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, read_json

ROOT = Path(__file__).resolve().parents[1]
DEMO_MODEL = ROOT / "demo_models" / "slipstream-demo"
SHARD_BYTES = 4 << 30
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def write_folder(
    source: TensorSource, model: Path, shape: Shape, output: Path, *, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write config, tokenizer and weights, as files of about `shard_bytes` each; config.json comes last."""
    output.mkdir(parents=True, exist_ok=True)
    _write_weights(source.tensors(), output, shard_bytes)
    for name in COPIED:
        if (model / name).exists():
            shutil.copyfile(model / name, output / name)
    _write_json(output / "config.json", shape.config_json(read_json(model / "config.json")))


def write_head(
    source: HeadSource, output: Path, *, embedding: torch.Tensor | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a head's weights and then its config; `embedding`, the target's, where it is to have its own."""
    output.mkdir(parents=True, exist_ok=True)
    own = () if embedding is None else (("embed_tokens.weight", embedding),)
    _write_weights(chain(source.tensors(), own), output, shard_bytes)
    _write_json(output / "config.json", source.config_json())


def _write_weights(tensors: Iterable[tuple[str, torch.Tensor]], output: Path, shard_bytes: int) -> None:
    total = 0
    weight_map: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}

    def save() -> None:
        file = f"model-{len(set(weight_map.values())) + 1:05}.safetensors"
        save_file(shard, output / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
        shard.clear()

    with tqdm(desc=str(output), unit="B", unit_scale=True) as bar:
        for name, tensor in tensors:
            shard[name] = tensor.cpu().contiguous()
            total += tensor.nbytes
            bar.update(tensor.nbytes)
            if sum(each.nbytes for each in shard.values()) >= shard_bytes:
                save()
        if shard:
            save()
    _write_json(output / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that `shape_of` reads."""
    shape = LLAMA_8B
    parser.add_argument("--hidden", type=int, default=shape.hidden_size, help="hidden size (%(default)s)")
    parser.add_argument("--layers", type=int, default=shape.num_layers, help="layers (%(default)s)")
    parser.add_argument("--heads", type=int, default=shape.num_heads, help="query heads (%(default)s)")
    parser.add_argument("--kv-heads", type=int, default=shape.num_kv_heads, help="key and value heads (%(default)s)")
    parser.add_argument("--head-dim", type=int, default=shape.head_dim, help="size of a head (%(default)s)")
    parser.add_argument("--intermediate", type=int, default=shape.intermediate_size, help="feed-forward (%(default)s)")
    parser.add_argument("--vocab", type=int, default=shape.vocab_size, help="vocabulary (%(default)s)")
    parser.add_argument("--context", type=int, default=shape.max_context, help="longest context (%(default)s)")


def shape_of(options: argparse.Namespace) -> Shape:
    """The shape that the flags of `add_shape_arguments` describe."""
    return Shape(
        hidden_size=options.hidden,
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        intermediate_size=options.intermediate,
        vocab_size=options.vocab,
        max_context=options.context,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inflate", description=__doc__.split("\n", 1)[0])
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model to widen (the demo model)")
    parser.add_argument("--random", action="store_true", help="random weights of the same shapes instead")
    parser.add_argument("--device", default="cpu", help="where weights are made (cpu)")
    parser.add_argument("--seed", type=int, default=0, help="of random weights (0)")
    add_shape_arguments(parser)
    parser.add_argument("--head", type=Path, help="EAGLE-3 head of that model, to be widened in its place")
    parser.add_argument("--draft-vocab", type=int, default=DRAFT_VOCAB, help="tokens that it scores (%(default)s)")
    parser.add_argument("--own-embedding", action="store_true", help="write the target's embedding beside the head")
    options = parser.parse_args(arguments)
    shape = shape_of(options)
    kind = "random" if options.random else "inflated"
    try:
        if options.head is None:
            source = source_of(kind, options.model, shape, device=options.device, seed=options.seed)
            write_folder(source, options.model, shape, options.output)
        else:
            _widen_head(options, shape, kind)
    except (ShapeError, CheckpointError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _widen_head(options: argparse.Namespace, shape: Shape, kind: str) -> None:
    made = {"entries": options.draft_vocab, "device": options.device, "seed": options.seed}
    head = HeadInflation(options.head, options.model, shape, **made)
    target = source_of(kind, options.model, shape, device=options.device, seed=options.seed)
    embedding = target.embedding() if options.own_embedding else None
    write_head(RandomHead(options.model, shape, head.boundaries, **made) if options.random else head, options.output,
               embedding=embedding)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
