"""`slipstream train answers`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def answers(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Prompts, as `prompts` writes or reads them.", show_default=False),
    ],
    *,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the results.")],
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="gRPC address of the gateway that serves the target; repeated, the prompts are shared out over "
            "several, each asked by a process of its own.",
            show_default="127.0.0.1:50051",
        ),
    ] = None,
    api_key: Annotated[str, typer.Option(help="API key.", envvar="SLIPSTREAM_API_KEY", show_default=False)] = "",
    model: Annotated[str, typer.Option(help="Name of the target.", show_default="the only one served")] = "",
    temperature: Annotated[float, typer.Option(help="0 picks the most likely token.", min=0, max=2)] = 0.8,
    top_p: Annotated[float, typer.Option(help="Nucleus kept.", min=0, max=1)] = 1.0,
    top_k: Annotated[int, typer.Option(help="Most likely tokens kept; 0 keeps all.", min=0)] = 0,
    max_tokens: Annotated[int, typer.Option(help="Longest answer; the context may end it before.", min=1)] = 1024,
    max_turns: Annotated[int, typer.Option(help="Answers of a conversation.", min=1)] = 16,
    seed: Annotated[int, typer.Option(help="Mixed with each prompt's hash into the seed of each answer.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Conversations answered together, by each gateway.", min=1)] = 32,
    patience: Annotated[
        float, typer.Option(help="Seconds to try again while the gateway is full or away, then the run stops.", min=0)
    ] = 300.0,
    shard_sequences: Annotated[int, typer.Option(help="Sequences of a shard.", min=1)] = 10_000,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask again what the gateway had refused for good.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what the folder has.")] = False,
) -> None:
    """Have the target answer the prompts through a running gateway, and keep its tokens.

    Questions of a conversation are asked in order, each after the target's own answers, under the target's own chat
    template. Writes answers-*.jsonl (token ids as the gateway gave them, and which of them the target produced),
    index.json (settings, counts, checksums) and failed.jsonl. An interrupted run goes on where it stood when it is
    started again; equal runs give equal files. Exit status 1 if nothing was answered or the gateway went away.
    """
    from slipstream.rpc.errors import SlipstreamError
    from training.answers.asker import GatewayGoneError
    from training.answers.run import Gateway, collect_answers, remove_run
    from training.answers.settings import AnswerSettings
    from training.answers.summary import render
    from training.prompts.records import input_files

    settings = AnswerSettings(temperature, top_p, top_k, max_tokens, max_turns, seed, model)
    first, *others = gateway or ["127.0.0.1:50051"]
    whom = Gateway(first, api_key, concurrency, patience, tuple(others))
    try:
        files = input_files(inputs)
        if restart:
            remove_run(out)
        outcome = collect_answers(
            files, out, whom, settings, shard_sequences=shard_sequences, retry_failed=retry_failed
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except (GatewayGoneError, SlipstreamError) as error:
        print(f"{type(error).__name__}: {error}; what has been answered is kept, start again to go on", file=sys.stderr)
        raise typer.Exit(1) from error
    print(render(outcome))
    raise typer.Exit(0 if outcome.index["summary"]["answers"] else 1)
