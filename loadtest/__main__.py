"""`python -m loadtest`: load at several concurrencies on a running server, then a table, JSON, CSV and plots."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from loadtest.measure import Level
from loadtest.report import print_table, write_files
from loadtest.target import TargetError, parse_target
from slipstream.commands import Commands

app = Commands(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
APIS = ("http", "grpc")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Bounds of one run."""

    apis: tuple[str, ...]
    concurrencies: tuple[int, ...]


def _numbers(value: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise typer.BadParameter("wants numbers separated by commas") from error
    if not all(1 <= number <= 1024 for number in numbers):
        raise typer.BadParameter("each must be from 1 to 1024")
    return numbers


def _apis(value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    if not set(names) <= set(APIS):
        raise typer.BadParameter(f"wants some of {', '.join(APIS)}")
    return names


@app.command()
def loadtest(
    *,
    host: Annotated[str, typer.Option(help="HTTP address of the gateway.")] = "http://127.0.0.1:8000",
    grpc: Annotated[str, typer.Option(help="gRPC address of the gateway.")] = "127.0.0.1:50051",
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines with messages, turns or prompt.", exists=True)
    ] = None,
    api: Annotated[str, typer.Option(help="http, grpc or both, separated by a comma.")] = "http,grpc",
    concurrency: Annotated[str, typer.Option(help="Numbers of concurrent streams.")] = "1,2,4,8,16",
    seconds: Annotated[float, typer.Option(help="Longest time a level.", min=1, max=600)] = 15.0,
    requests: Annotated[int, typer.Option(help="Most answers a level.", min=1, max=100_000)] = 2000,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 picks the most likely token.", min=0, max=2)] = 0.0,
    proposer: Annotated[str, typer.Option(help="Proposer to ask for. [default: the operator's]")] = "",
    speculation: Annotated[bool, typer.Option(help="Whether to speculate.")] = True,
    api_key: Annotated[str, typer.Option(help="API key.", envvar="SLIPSTREAM_API_KEY")] = "",
    out: Annotated[Path, typer.Option(help="Folder for levels.json, levels.csv and plots.")] = Path("loadtest/out"),
    remote: Annotated[bool, typer.Option("--remote", help="Allow a server of yours on another machine.")] = False,
) -> None:
    """Measure TTFT, TPOT and throughput against concurrency. Ends by itself: every level is bounded."""
    plan = LoadPlan(_apis(api), _numbers(concurrency))
    try:
        parse_target(host, grpc, remote=remote)
    except TargetError as error:
        raise typer.BadParameter(str(error)) from error
    levels = []
    for name in plan.apis:
        for streams in plan.concurrencies:
            print(f"{name}, {streams} concurrent streams, at most {seconds:g} s ...", file=sys.stderr, flush=True)
            order = {
                "api": name,
                "concurrency": streams,
                "seconds": seconds,
                "requests": requests,
                "http": host,
                "grpc": grpc,
                "prompts": str(prompts or ""),
                "max_tokens": max_tokens,
                "temperature": temperature,
                "proposer": proposer,
                "speculation": speculation,
                "remote": remote,
                "api_key": api_key,
            }
            levels.append(_run(order))
    print_table(levels)
    for path in write_files(levels, out):
        print(f"written: {path}")
    if not any(level.answers for level in levels):
        raise typer.Exit(1)


def _run(order: dict[str, object]) -> Level:
    worker = subprocess.run(
        [sys.executable, "-m", "loadtest.worker"],
        input=json.dumps(order),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Level(**json.loads(worker.stdout.splitlines()[-1]))


if __name__ == "__main__":
    app()
