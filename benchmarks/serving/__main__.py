r"""Serving over HTTP, as clients meet it: load on any OpenAI server, or on ours in each form, with answers compared.

    python -m benchmarks.serving --prompts FILE                        # the demo model, every form that the machine has
    python -m benchmarks.serving --prompts FILE --model DIR --draft eagle3:HEAD --forms plain,inproc,mps \
        --budgets default,16/5 --concurrency 1,4,16,64 --rates 2,8 --ramp 128/30 --output OUT.json --plot OUT.png
    python -m benchmarks.serving --prompts FILE --server http://127.0.0.1:8000 --label vLLM --tokenizer DIR

Forms, each a `slipstream serve` that is started, awaited until its drafter has attached, measured and drained:

    plain           without a drafter
    inproc          the proposer in the verify service's process
    mps             in a draft service of its own, both services under NVIDIA MPS
    time-slicing    in a draft service of its own that takes turns with verify on the GPU
    draft-service   in a draft service of its own, wherever it computes

Loads: a closed loop keeps so many requests under way, an open loop sends them at random times whatever is answered, a
ramp is a closed loop that grows and shrinks. Requests go to /v1/completions, streamed, at T = 0, without an end before
--new-tokens. Several processes play the clients over plain sockets and read what came once the load is over.

--warm says what is sent before a load, untimed, so that prompts lie in the prefix cache and every way was used once:
`same`, the same closed loop (before others: every prompt once); `once`, every prompt once for a form, budget and
context; `none`. Answers carry token ids only there unless --token-ids says otherwise, as writing them costs time.

Budgets are what requests say of speculation: nothing (default), that there is to be none (off), or how many rows of a
step they take and how deep (ROWS/DEPTH). A form without a drafter is measured with the default alone.

Of our servers that draft, a table sets how many times as fast as plain decoding trees were to make a load, by the
server's own prices, beside how it came: against the form plain.

Exit status 1 if an answer of ours differs from the first one to the same prompt in any form, budget and load, if a load
had no answer, or if a form did not start; the others are measured all the same. Answers of --server are compared, too,
but not judged: those of other makes depend on the batch.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lib.prompts import PromptFileError
from benchmarks.lib.report import gpu_machine, write_json
from benchmarks.lib.server_process import ServeError
from benchmarks.serving import tables
from benchmarks.serving.comparison import Comparison
from benchmarks.serving.crowd import Crowd
from benchmarks.serving.forms import Form, NotReadyError, Running, served_name, started, wait_drafting
from benchmarks.serving.load import loads_of
from benchmarks.serving.measures import Bounds
from benchmarks.serving.options import parse
from benchmarks.serving.plot import plot_serving
from benchmarks.serving.prompt_sets import PromptSet, read_prompts, stretched
from benchmarks.serving.session import Budget, Session, Settings

Server = Callable[[], AbstractContextManager[Running]]
"""Starts, or finds, what is measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write what is asked for."""
    options = parse(__doc__ or "", arguments)
    try:
        prompts = _prompts(options)
        with tempfile.TemporaryDirectory() as folder:
            servers = _servers(options, Path(options.logs or folder))
            content = run(options, prompts, servers)
    except (PromptFileError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(tables.text(content))
    if options.plot:
        plot_serving(options.plot, content)
    return verdict(content, judged=not options.server)


def run(
    options: argparse.Namespace, prompts: dict[int, PromptSet], servers: dict[str, tuple[Server, Sequence[Budget]]]
) -> dict[str, Any]:
    """What goes into the file of results, written after each load. A server that fails does not end the run."""
    comparison = Comparison()
    content: dict[str, Any] = {
        "machine": _machine(options.device),
        "settings": _told(options, prompts),
        "servers": {},
        "cells": [],
        "comparison": comparison.summary(),
    }
    with Crowd(options.processes) as crowd:
        session = Session(crowd, _settings(options, prompts), comparison)
        for name, (server, budgets) in servers.items():
            print(f"{name}: start", file=sys.stderr, flush=True)
            facts = content["servers"].setdefault(name, {})
            try:
                with server() as running:
                    facts |= running.facts
                    for cell in session.cells(name, running, budgets):
                        content["cells"].append(cell)
                        content["comparison"] = comparison.summary()
                        print(tables.line(cell), file=sys.stderr, flush=True)
                        _write(options, content)
            except (ServeError, NotReadyError, OSError, subprocess.SubprocessError) as error:
                facts["failure"] = str(error)
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                _write(options, content)
    return content


def _machine(device: str) -> dict[str, Any]:
    """Facts about it, of a process of their own: this one keeps off the GPU that is measured."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(gpu_machine, device).result()


def _write(options: argparse.Namespace, content: dict[str, Any]) -> None:
    if options.output:
        write_json(options.output, content)


def verdict(content: dict[str, Any], *, judged: bool) -> int:
    """The exit status."""
    empty = [cell for cell in content["cells"] if not cell["answers"]]
    failed = [name for name, facts in content["servers"].items() if "failure" in facts]
    return int(bool(empty or failed) or (judged and content["comparison"]["differing"] > 0))


def _servers(options: argparse.Namespace, logs: Path) -> dict[str, tuple[Server, Sequence[Budget]]]:
    """By name, each with its budgets."""
    if options.server:
        return {options.label: (partial(_found, options), options.budgets)}
    logs.mkdir(parents=True, exist_ok=True)
    servers: dict[str, tuple[Server, Sequence[Budget]]] = {}
    for form in options.forms:
        servers[form.name] = (
            _starter(form, logs, options.attach_seconds),
            options.budgets if form.drafts else (Budget(),),
        )
    return servers


def _starter(form: Form, logs: Path, attach_seconds: float) -> Server:
    return partial(started, form, logs / f"{form.name}.log", attach_seconds)


def _found(options: argparse.Namespace) -> AbstractContextManager[Running]:
    """The server of --server, once it lists a model and, if it is one of ours, its drafters are attached."""
    url = options.server.rstrip("/").removesuffix("/v1")
    model = options.model or served_name(url, options.attach_seconds, options.api_key)
    missing = wait_drafting(url, options.attach_seconds, options.api_key)
    if missing:
        print(f"nothing drafts as {', '.join(missing)}", file=sys.stderr)
    return nullcontext(Running(url, model, {"url": url, "model": model, "missing_proposers": missing}))


def _prompts(options: argparse.Namespace) -> dict[int, PromptSet]:
    """By context."""
    read = read_prompts(options.prompts, options.count, options.tokenizer, options.seed)
    return {context: stretched(read, context, options.tokenizer, options.seed) for context in options.contexts}


def _settings(options: argparse.Namespace, prompts: dict[int, PromptSet]) -> Settings:
    return Settings(
        prompts=prompts,
        loads=loads_of(
            options.concurrency, options.per_client, options.rates, options.open_seconds, options.ramp, options.seed
        ),
        tokens=options.new_tokens,
        send=options.send,
        warm=options.warm,
        token_ids=options.token_ids,
        bounds=Bounds(options.ttft_bound_ms, options.tpot_bound_ms),
        more=options.body,
        api_key=options.api_key,
        patience=options.patience,
    )


def _told(options: argparse.Namespace, prompts: dict[int, PromptSet]) -> dict[str, Any]:
    """The settings as results tell of them."""
    names = (
        "new_tokens",
        "send",
        "warm",
        "token_ids",
        "processes",
        "seed",
        "per_client",
        "ttft_bound_ms",
        "tpot_bound_ms",
    )
    return {
        **{name: getattr(options, name) for name in names},
        "prompts": len(next(iter(prompts.values()))),
        "prompt_file": options.prompts.name,
        "prompt_tokens": {str(context): each.mean_tokens for context, each in prompts.items()},
        "serve_arguments": options.serve_arg,
        "body": options.body,
    }


if __name__ == "__main__":
    sys.exit(main())
