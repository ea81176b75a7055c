"""Widens a small model to the tensor shapes of a large one without changing what it computes, and its EAGLE-3 head.

    python -m benchmarks.inflate OUTPUT [--model FOLDER] [--random] [--hidden N] [--layers N] ...
    python -m benchmarks.inflate OUTPUT --head FOLDER [--model FOLDER] [--own-embedding] [--hidden N] ...

OUTPUT becomes a Hugging Face folder that any engine can serve: the text, and with it the acceptance of drafts, is the
small model's, the cost of a step is the large one's. The shapes are Llama-3.1-8B's (16.1 GB) unless flags say
otherwise. At those of a mixture, such as --shape qwen3-30b-a3b (61 GB), a dense model becomes a mixture of Mixtral's
form whose experts are parts of its feed-forward network; a mixture keeps its form. With --random all weights are random
instead, as those at --shape llama-4-scout (216 GB, in fp8 110) have to be: a stream that is mostly zeros hides errors
of summation order and flatters timings that are bound by arithmetic. With --format all linear layers but the head are
rounded, as `slipstream quantize` would; with --format mxfp4 a dense model at the shape of a mixture becomes a gpt-oss
with experts in MXFP4. With --head, a folder with a head that was trained for the model, OUTPUT becomes the widened
model's head, which borrows the model's embedding unless --own-embedding adds it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.inflate.folder import write_folder, write_head
from benchmarks.inflate.gpt_oss_form import MXFP4
from benchmarks.inflate.head import DRAFT_VOCAB, HeadInflation, RandomHead
from benchmarks.inflate.shape import Shape, ShapeError
from benchmarks.inflate.shape_arguments import add_format_arguments, add_shape_arguments, format_of, shape_of
from benchmarks.inflate.shards import NoRoomError
from benchmarks.inflate.tensors import Inflation, RandomModel, TensorSource, source_of
from benchmarks.lib.repository import DEMO_MODEL
from slipstream_kernels.models.checkpoint.model_config import CheckpointError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inflate", description=__doc__.split("\n", 1)[0])
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model to widen (the demo model)")
    parser.add_argument("--random", action="store_true", help="random weights of the same shapes instead")
    parser.add_argument("--device", default="cpu", help="where weights are made (cpu)")
    parser.add_argument("--seed", type=int, default=0, help="of random weights (0)")
    add_shape_arguments(parser)
    add_format_arguments(parser, MXFP4)
    parser.add_argument("--head", type=Path, help="EAGLE-3 head of that model, to be widened in its place")
    parser.add_argument("--draft-vocab", type=int, default=DRAFT_VOCAB, help="tokens that it scores (%(default)s)")
    parser.add_argument("--own-embedding", action="store_true", help="write the target's embedding beside the head")
    options = parser.parse_args(arguments)
    if options.head is not None and options.format is not None:
        parser.error("argument --format: a head is not rounded")
    shape = shape_of(options)
    try:
        if options.head is None:
            made = {"device": options.device, "seed": options.seed}
            source: TensorSource = (
                RandomModel(options.model, shape, readable=True, **made)
                if options.random
                else Inflation(options.model, shape, **made)
            )
            mxfp4 = options.format == MXFP4
            form = None if mxfp4 else format_of(options)
            write_folder(source, options.model, shape, options.output, form=form, mxfp4=mxfp4)
        else:
            _widen_head(options, shape)
    except (ShapeError, NoRoomError, CheckpointError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _widen_head(options: argparse.Namespace, shape: Shape) -> None:
    kind = "random" if options.random else "inflated"
    made = {"entries": options.draft_vocab, "device": options.device, "seed": options.seed}
    head = HeadInflation(options.head, options.model, shape, **made)
    target = source_of(kind, options.model, shape, device=options.device, seed=options.seed)
    embedding = target.embedding() if options.own_embedding else None
    write_head(RandomHead(options.model, shape, head.boundaries, **made) if options.random else head, options.output,
               embedding=embedding)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
