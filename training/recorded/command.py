"""`slipstream train recorded`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def recorded(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...",
            help="JSON lines, also compressed (.gz, .xz), as `prompts` reads them or writes them with --keep-answers: "
            "conversations with what assistants said, prompts with their response, completion, output or answer, or "
            "plain texts in text.",
            show_default=False,
        ),
    ],
    *,
    model: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the target.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the results.")],
    field: Annotated[
        str | None, typer.Option(help="Field that holds the messages or a plain text.", show_default="found")
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(
            help="Longest sequence: conversations are cut there, texts go on in another.",
            show_default="the context",
            min=0,
        ),
    ] = 0,
    limit: Annotated[
        int, typer.Option(help="Lines at most, evenly spread over the inputs.", show_default="all", min=0)
    ] = 0,
    workers: Annotated[int, typer.Option(help="Processes.", show_default="one a core, at most 16", min=0)] = 0,
    shard_sequences: Annotated[int, typer.Option(help="Sequences of a shard.", min=1)] = 10_000,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what the folder has.")] = False,
) -> None:
    """Take recorded conversations and texts as they are, in place of the target's own answers: no server is asked.

    Conversations are written under the target's own chat template, as its gateway writes prompts, and what assistants
    said in them is marked as what is to be learned, end of turn included; of texts, all is. Writes answers-*.jsonl and
    index.json, which `features` and `fit` take like those of `answers`, alone or beside them. Equal runs give equal
    files, whatever --workers is; an interrupted one begins anew. Exit status 1 if there was nothing to learn from.
    """
    from slipstream_kernels.models.checkpoint.model_config import ModelConfig
    from training.prompts.records import input_files
    from training.recorded.counters import render
    from training.recorded.rendering import Rendering
    from training.recorded.run import remove_run, write_recordings
    from training.recorded.settings import RecordingSettings

    try:
        config = ModelConfig.from_folder(model)
        settings = RecordingSettings(min(max_tokens or config.max_context, config.max_context), limit, field)
        files = input_files(inputs)
        if restart:
            remove_run(out)
        outcome = write_recordings(
            files,
            out,
            Rendering(model, config.eos_token_ids),
            config.vocab_size,
            settings,
            workers=workers or min(16, os.cpu_count() or 1),
            shard_sequences=shard_sequences,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    print(render(outcome))
    raise typer.Exit(0 if outcome.index["summary"]["sequences"] else 1)
