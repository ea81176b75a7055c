"""`slipstream train evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...",
            help="Prompts that were kept from training, as `prompts` writes or reads them.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the results.")],
    proposer: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Proposer that the gateway's server has attached, the one of interest first; repeat it to compare.",
        ),
    ],
    simulated: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN|FILE",
            help="Folder of the run of `fit`, or its metrics.json, for its figure and curves.",
            show_default=False,
        ),
    ] = None,
    gateway: Annotated[str, typer.Option(metavar="HOST:PORT", help="gRPC address of the gateway.")] = "127.0.0.1:50051",
    api_key: Annotated[str, typer.Option(help="API key.", envvar="SLIPSTREAM_API_KEY", show_default=False)] = "",
    model: Annotated[str, typer.Option(help="Name of the target.", show_default="the only one served")] = "",
    plain: Annotated[bool, typer.Option(help="Whether to measure plain decoding too.")] = True,
    temperatures: Annotated[str, typer.Option(metavar="LIST", help="Temperatures to measure at.")] = "0,0.8",
    top_p: Annotated[float, typer.Option(help="Nucleus kept.", min=0, max=1)] = 1.0,
    top_k: Annotated[int, typer.Option(help="Most likely tokens kept; 0 keeps all.", min=0)] = 0,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 256,
    max_turns: Annotated[int, typer.Option(help="Answers of a conversation.", min=1)] = 1,
    limit: Annotated[
        int | None, typer.Option(help="Conversations, spread over the categories.", min=1, show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(help="Mixed with each prompt's hash into the seed of each answer.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Conversations answered together.", min=1)] = 8,
    patience: Annotated[
        float, typer.Option(help="Seconds to try again while the gateway is full or away, then the run stops.", min=0)
    ] = 300.0,
    title: Annotated[str, typer.Option(help="Of the report.", show_default="names the proposer")] = "",
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what the folder has.")] = False,
) -> None:
    """Measure acceptance length in the real engine, by category, and write a report.

    Asks a running gateway for answers under each proposer and temperature. Writes report.html (one page, one file) and
    acceptance.json. An interrupted run goes on where it stood; a complete one only writes its report anew. Exit status
    1 if the gateway went away or the first proposer made no tree.
    """
    from slipstream.rpc.errors import SlipstreamError
    from training.answers.asker import GatewayGoneError
    from training.answers.run import Gateway
    from training.common.atomic_files import write_whole
    from training.evaluate.report import render, render_text
    from training.evaluate.run import ALL, measure_acceptance, remove_run
    from training.evaluate.settings import AcceptanceSettings
    from training.evaluate.simulated import read_simulated
    from training.prompts.records import input_files

    if len(set(proposer)) < len(proposer):
        raise typer.BadParameter("--proposer names one twice")
    settings = AcceptanceSettings(
        proposers=tuple(proposer),
        plain=plain,
        temperatures=_temperatures(temperatures),
        top_p=top_p,
        top_k=top_k,
        max_tokens=max_tokens,
        max_turns=max_turns,
        seed=seed,
        limit=limit,
        model=model,
    )
    try:
        supposed = read_simulated(simulated) if simulated else None
        files = input_files(inputs)
        if restart:
            remove_run(out)
        result = measure_acceptance(files, out, Gateway(gateway, api_key, concurrency, patience), settings)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except (GatewayGoneError, SlipstreamError) as error:
        print(f"{type(error).__name__}: {error}; what has been answered is kept, start again to go on", file=sys.stderr)
        raise typer.Exit(1) from error
    page = render(result, supposed, title=title or f"Acceptance of {proposer[0]}")
    write_whole(out / "report.html", page.encode("utf-8", "backslashreplace"))
    print(render_text(result, supposed))
    print(f"report: {out / 'report.html'}")
    own = [cell["categories"].get(ALL) for cell in result["cells"] if cell["proposer"] == proposer[0]]
    raise typer.Exit(0 if any(figures and figures["steps_with_tree"] for figures in own) else 1)


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"--temperatures: {error}") from error
    if any(not (value == 0 or 1e-5 <= value <= 2) for value in values) or len(set(values)) < len(values):
        raise typer.BadParameter("--temperatures are 0 or from 1e-5 to 2, each once")
    return values
