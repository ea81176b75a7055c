"""Bits and speed of passes whose rows have LoRA adapters, at the shapes of Llama-3.1-8B, on a GPU.

    python -m benchmarks.adapter_speed --output adapter_speed.json        # on a GPU; minutes
    python -m benchmarks.adapter_speed --quick                            # 8 of the 32 layers: the same checks
    python -m benchmarks.adapter_speed --tiny --device cpu                # a small random model, by the ops' twins

Random weights and adapters of all projections, both drawn on the device.

- Bits: requests with each adapter and without decode a token alone, all together, and in reversed order, behind prompts
  of one chunk and of several, which other kernels compute; rows without an adapter also in a model that has no room for
  any. Logits that differ make the run fail.
- Speed: decode passes at context 1k, of requests without adapters, all with one adapter, and with as many as there are.
  All with one adapter have the launches of several, and the bytes of one: the table has the excess over no adapters for
  each layer, and, in a row of several adapters, how much of that is there with one already ("of launches").
  With --quick layers have the same shapes, but the head, which has no adapter, is a larger share of a pass: ratios are
  lower by that than those of the whole model, times a layer are the same.
- Stalls: the longest time between passes of the largest batch, with and without a thread beside them that loads and
  unloads an adapter.

What takes how long is told meanwhile, on stderr.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inflate.shape import LLAMA_8B, Shape
from benchmarks.inflate.tensors import source_of
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter, adaptable_modules
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.gpu.batch.pass_plan import Int32
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel, PassPlan
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from slipstream_kernels.ops.lora.lora_weight import LoraWeight

TINY = Shape(128, 2, 2, 1, 64, 256, vocab_size=512, max_context=4096)
QUICK_LAYERS = 8
PAGE_SIZE = 16
FEW = 16
"""Tokens of a chunk of a prompt that is computed in several."""
WANTED = 1.1
"""Of the time of a pass without adapters: at most so much with them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """adapters and their rank; requests of timed passes, which are at position context; passes timed; tokens of prompts
    whose logits are compared.
    """

    adapters: int = 16
    rank: int = 16
    batches: tuple[int, ...] = (1, 16, 64)
    context: int = 1024
    passes: int = 100
    prompt: int = 80

    @property
    def limits(self) -> GpuLimits:
        running = max(*self.batches, self.adapters + 1)
        pages = -(-(self.context + 1) // PAGE_SIZE)
        return GpuLimits(
            max_running=running,
            max_nodes=1,
            step_nodes=0,
            prefill_chunk=self.prompt,
            page_size=PAGE_SIZE,
            num_pages=running * pages,
            max_context=pages * PAGE_SIZE,
            max_adapters=self.adapters,
            max_adapter_rank=self.rank,
        )


def random_adapter(config: ModelConfig, rank: int, seed: int, device: str) -> LoraAdapter:
    """Of all projections, as strong as a tenth of what it is added to; drawn on the device, and held there."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for name, (outputs, inputs) in adaptable_modules(config).items():
        a = torch.randn(rank, inputs, generator=generator, device=device).mul_(inputs**-0.5).bfloat16()
        b = torch.randn(outputs, rank, generator=generator, device=device).mul_(0.1 * rank**-0.5).bfloat16()
        weights[name] = LoraWeight(a, b, 1.0)
    if device == "cuda":
        torch.cuda.synchronize()  # it is copied on another stream
    return LoraAdapter(weights, rank, str(seed))


def on_host(adapter: LoraAdapter) -> LoraAdapter:
    """As one that is read from a folder."""
    weights = {name: LoraWeight(each.a.cpu(), each.b.cpu(), each.scale) for name, each in adapter.weights.items()}
    return LoraAdapter(weights, adapter.rank, adapter.fingerprint)


class Bench:
    """A model whose line i owns the i-th run of pages."""

    def __init__(self, weights: GpuWeights, limits: GpuLimits, *, capture: bool = True) -> None:
        self.model = GpuModel.from_weights(weights, limits, capture=capture, progress=capture)
        self._pages = self.model.limits.context_pages
        for line in range(limits.max_running):
            pages = np.arange(line * self._pages, (line + 1) * self._pages, dtype=np.int32)
            self.model.set_pages(line, 0, pages)

    def use(self, adapters: Sequence[int]) -> None:
        """The adapter of each line, from the first on."""
        for line, slot in enumerate(adapters):
            self.model.set_line(line, pack_line(), adapter=slot)

    def prefill(self, line: int, tokens: Int32, chunk: int) -> None:
        """In passes of `chunk` tokens at most."""
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk].copy()
            slots = line * self._pages * PAGE_SIZE + start + np.arange(len(part), dtype=np.int32)
            self.model.launch(PassPlan.chunk(part, line=line, start=start, slots=slots)).results()

    def decode(self, lines: Sequence[int], position: int, tokens: Int32, *, keep: bool = True) -> PassPlan:
        """One token of each line at the same position."""
        rows = len(lines)
        count, own = np.arange(rows, dtype=np.int32), np.array(lines, np.int32)
        spans = np.stack([count, np.ones_like(count), own, np.full(rows, position + 1, np.int32)], axis=1)
        return PassPlan(
            token_ids=tokens,
            positions=np.full(rows, position, np.int32),
            write_slots=own * np.int32(self._pages * PAGE_SIZE) + np.int32(position),
            lines=own,
            prefix_lengths=np.full(rows, position + 1, np.int32),
            parents=np.full(rows, -2, np.int32),
            root_rows=count,
            logit_rows=count,
            deciding=spans,
            decodes=spans,
            keep_logits=keep,
        )

    def logits(self, lines: Sequence[int], position: int, tokens: Int32) -> torch.Tensor:
        ticket = self.model.launch(self.decode(lines, position, tokens[list(lines)]))
        ticket.results()
        return ticket.logits[: len(lines)].clone().cpu()

    def milliseconds(self, batch: int, sizes: Sizes) -> float:
        """Of a decode pass of the first lines, the median of the times between passes that follow one another."""
        return 1e3 * float(np.median(self.seconds(batch, sizes)[sizes.passes // 5 :]))

    def seconds(self, batch: int, sizes: Sizes) -> list[float]:
        """Between decode passes of the first lines that follow one another."""
        plan = self.decode(range(batch), sizes.context, np.arange(batch, dtype=np.int32), keep=False)
        times, last, ticket = [], time.perf_counter(), self.model.launch(plan)
        for _ in range(sizes.passes):
            following = self.model.launch(plan)
            ticket.results()
            now = time.perf_counter()
            times.append(now - last)
            last, ticket = now, following
        ticket.results()
        return times


def compare_bits(bench: Bench, bare: Bench, sizes: Sizes) -> dict[str, int]:
    """Rows whose logits differ from those that they have alone; or, without an adapter, in a model that knows none."""
    lines, prompt = list(range(sizes.adapters + 1)), sizes.prompt
    slots = [*range(sizes.adapters), -1]
    vocab_size = bench.model.config.vocab_size
    tokens = np.random.default_rng(3).integers(0, vocab_size, (len(lines), prompt + 1)).astype(np.int32)
    bench.use(slots)
    for line in lines:
        bench.prefill(line, tokens[line, :prompt], prompt)
    last = tokens[:, prompt].copy()
    alone = [bench.logits([line], prompt, last)[0] for line in lines]
    for line in lines:
        bench.prefill(line, tokens[line, :prompt], FEW)
    together, turned = bench.logits(lines, prompt, last), bench.logits(lines[::-1], prompt, last).flip(0)
    differing = sum(
        not (torch.equal(each, together[line]) and torch.equal(each, turned[line])) for line, each in enumerate(alone)
    )
    plain = lines[-1]
    bare.use([-1] * len(lines))
    bare.prefill(plain, tokens[plain, :prompt], prompt)
    same = torch.equal(alone[plain], bare.logits([plain], prompt, last)[0])
    equal = sum(torch.equal(each, alone[plain]) for each in alone[:-1])
    return {"rows": len(lines), "differing": differing, "differing without": int(not same), "without effect": equal}


def measure_speed(bench: Bench, sizes: Sizes) -> list[dict[str, Any]]:
    rows, layers = [], bench.model.config.num_layers
    for batch in sizes.batches:
        bench.use([-1] * batch)
        plain, excess = bench.milliseconds(batch, sizes), []
        for adapters in sorted({1, min(batch, sizes.adapters)}):
            bench.use([line % adapters for line in range(batch)])
            adapted = bench.milliseconds(batch, sizes)
            excess.append(adapted - plain)
            rows.append(
                {
                    "batch": batch,
                    "adapters": adapters,
                    "none ms": plain,
                    "ms": adapted,
                    "ratio": adapted / plain,
                    "us a layer": 1e3 * excess[-1] / layers,
                    "of launches": excess[0] / excess[-1],
                }
            )
    return rows


def measure_stalls(bench: Bench, sizes: Sizes, adapter: LoraAdapter) -> dict[str, float]:
    """The longest of the times between passes of the largest batch, alone and while a thread loads and unloads.

    The slot that is written is the last, once in the time of four passes; no line of these passes has it.
    """
    batch, slot, ended = max(sizes.batches), sizes.adapters - 1, threading.Event()
    bench.use([line % slot if slot else -1 for line in range(batch)])
    skipped = sizes.passes // 5
    alone = bench.seconds(batch, sizes)[skipped:]
    pause, loads = 4 * float(np.median(alone)), 0

    def load() -> None:
        nonlocal loads
        while True:
            bench.model.free_adapter(slot)
            bench.model.write_adapter(slot, adapter)
            loads += 1
            if ended.wait(pause):
                return

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        beside = bench.seconds(batch, sizes)[skipped:]
        ended.set()
        loading.result()
    return {
        "loads": loads,
        "median ms": 1e3 * float(np.median(alone)),
        "longest ms": 1e3 * max(alone),
        "median ms while loading": 1e3 * float(np.median(beside)),
        "longest ms while loading": 1e3 * max(beside),
    }


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Tell that it begins, and how long it took."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    begun = time.perf_counter()
    yield
    print(f"{name}: {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)


def measure(config: ModelConfig, sizes: Sizes, device: str) -> dict[str, Any]:
    """Bits, speed, stalls, and the seconds in which an adapter is written from the host."""
    limits = sizes.limits
    with stage("random weights, and a model without adapters"):
        weights = GpuWeights.random(config, device)
        bare = Bench(weights, replace(limits, max_adapters=0), capture=False)
    with stage("a model with adapters, and its graphs"):
        bench = Bench(weights, limits)
    with stage(f"{sizes.adapters} adapters"):
        for slot in range(sizes.adapters):
            bench.model.write_adapter(slot, random_adapter(config, sizes.rank, slot, device))
    other = on_host(random_adapter(config, sizes.rank, sizes.adapters, device))
    with stage("bits"):
        bits = compare_bits(bench, bare, sizes)
    with stage("speed"):
        speed = measure_speed(bench, sizes)
    with stage("stalls"):
        stalls = measure_stalls(bench, sizes, other)
    begun = time.perf_counter()
    bench.model.write_adapter(sizes.adapters - 1, other)
    return {"bits": bits, "speed": speed, "stalls": stalls, "write s": time.perf_counter() - begun}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters", type=int, default=16, help="how many (16)")
    parser.add_argument("--rank", type=int, default=16, help="of each (16)")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="the model that has the shape put on")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a trial with the ops' twins (cuda)")
    parser.add_argument("--tiny", action="store_true", help="a small model, and few passes")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_LAYERS} of the 32 layers, of the same shapes; the head as it is"
    )
    parser.add_argument("--output", type=Path, help="a JSON file")
    options = parser.parse_args(arguments)
    sizes, shape = Sizes(options.adapters, options.rank), LLAMA_8B
    if options.quick:
        shape = replace(shape, num_layers=QUICK_LAYERS)
    if options.tiny:
        sizes = Sizes(min(3, options.adapters), options.rank, (1, 4), context=40, passes=4, prompt=20)
        shape = TINY
    results = measure(source_of("random", options.model, shape, device="meta").config, sizes, options.device)
    bits, speed, stalls = results["bits"], results["speed"], results["stalls"]
    print(markdown_table(list(stalls), [list(stalls.values())]))
    print(markdown_table(list(speed[0]), [list(row.values()) for row in speed]))
    loading = results["write s"]
    print(f"bits: {bits}; an adapter is written in {loading:.2f} s; at most {WANTED:g} is wanted", flush=True)
    if options.output:
        machine = gpu_machine(options.device) | {"layers": shape.num_layers}
        write_json(options.output, {"machine": machine, "results": results})
    return int(any(bits[key] for key in ("differing", "differing without", "without effect")))


if __name__ == "__main__":
    sys.exit(main())
