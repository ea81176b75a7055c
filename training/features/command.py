"""`slipstream train features`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def features(
    answers: Annotated[
        list[Path],
        typer.Argument(
            metavar="ANSWERS...", help="Folders that `answers` or `recorded` has written.", show_default=False
        ),
    ],
    *,
    model: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the target that answered.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the results.")],
    boundaries: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS",
            help="Boundaries to keep, as in 2,4,5,9: 0 is the embedding, b the output of layer b - 1 (counted from 0), "
            "and the number of layers plus 1 what the target's head reads.",
            show_default="EAGLE-3's, 2, N // 2 and N - 3 of N layers, and N + 1",
        ),
    ] = "",
    max_tokens: Annotated[
        int, typer.Option(help="Longest sequence; longer ones are cut or dropped.", show_default="the context", min=0)
    ] = 0,
    longer: Annotated[str, typer.Option(metavar="cut|drop", help="What becomes of longer sequences.")] = "cut",
    device: Annotated[str, typer.Option(help="Where the target runs: cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads of the target on the CPU.", min=1)] = 2,
    rows: Annotated[
        int,
        typer.Option(help="Tokens of one pass, of several sequences.", show_default="256 on cpu, 2048 on cuda", min=0),
    ] = 0,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Part of the GPU's memory that may be taken.", min=0.01, max=1.0)
    ] = 0.9,
    shard_mib: Annotated[int, typer.Option(help="MiB of states in a shard, roughly.", min=1, max=16_384)] = 1024,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be written; exit status 1 if it does not fit.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what the folder has.")] = False,
) -> None:
    """Keep the target's hidden states of the answers, as the engine computes them when it serves.

    Writes features-*.safetensors (states in bfloat16, tokens, and which of them the target produced) and index.json
    (settings, counts, checksums). Refuses with figures where the disk is too small. An interrupted run goes on where it
    stood when it is started again; equal runs give equal files. To train without the disk, give `fit` the answers.
    """
    from training.common.atomic_files import DamagedError
    from training.features.run import extract_features, plan_features, remove_run
    from training.features.settings import FeatureSettings, Machine
    from training.features.summary import render, render_plan

    try:
        settings = FeatureSettings(boundary_numbers(boundaries), max_tokens, longer)
        machine = Machine(device, threads, rows, gpu_memory_utilization)
        plan = plan_features(answers, model, settings, shard_bytes=shard_mib << 20)
        if restart and not dry_run:
            remove_run(out)
        print(render_plan(plan, out), flush=True)
        if dry_run:
            raise typer.Exit(0 if plan.room(out).suffices else 1)
        outcome = extract_features(plan, out, machine)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except OSError as error:
        print(f"{error}; what has been written is kept, start again to go on", file=sys.stderr)
        raise typer.Exit(1) from error
    except (DamagedError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    print(render(outcome))


def boundary_numbers(text: str) -> tuple[int, ...]:
    """What --boundaries says, as in 2,4,5. ValueError for anything else."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"--boundaries are {text!r}, must be numbers joined by commas")
    return tuple(int(part) for part in parts)
