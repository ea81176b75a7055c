"""`slipstream train export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run of `fit`, or its head/.", show_default=False)
    ],
    *,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder to write, empty or not there.")],
    layout: Annotated[str, typer.Option("--format", metavar="sglang|vllm|speculators", help="Who is to load it.")],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the target, which speculators' configuration names; lends scoring rows to heads without.",
            show_default=False,
        ),
    ] = None,
    draft_tokens: Annotated[
        int, typer.Option(help="Tokens of a chain, where the configuration (speculators') has a place for it.", min=1)
    ] = 5,
) -> None:
    """Write a trained head in the layout of another engine.

    `fit` leaves heads as they are published, which this project loads, and vLLM and SGLang in most cases too; what
    they want otherwise (numbers of layers, names, a bias) is done here.
    """
    from slipstream_kernels.models.checkpoint.model_config import CheckpointError
    from training.export.layouts import FORMATS, export_head

    if layout not in FORMATS:
        raise typer.BadParameter(f"--format is one of {', '.join(FORMATS)}")
    try:
        family = export_head(run, out, layout, model=model, draft_tokens=draft_tokens)
    except (CheckpointError, OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    print(f"{family} for {layout}: {out}")
