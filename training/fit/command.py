"""`slipstream train fit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from training.features.command import boundary_numbers

if TYPE_CHECKING:
    from training.features.source import FeatureSource
    from training.fit.settings import FitSettings


def fit(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the run.")],
    features: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Folder that `features` has written; repeat it for several.", show_default=False
        ),
    ] = None,
    answers: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Instead of --features: a folder of `answers` or `recorded`, whose states are computed as they are "
            "needed; repeat it for several.",
            show_default=False,
        ),
    ] = None,
    heldout: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Features (with --answers: answers) kept from training, to simulate the acceptance length on. Best "
            "answered at temperature 0.",
            show_default="none",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the target.", show_default="where the features were computed"),
    ] = None,
    family: Annotated[
        str, typer.Option(help="eagle3, eagle (EAGLE-1, -2), mtp, medusa, mlp-speculator, draft-model.")
    ] = "eagle3",
    start: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of a head of the same family and shapes to begin with, or of a draft model.",
            show_default="none",
        ),
    ] = None,
    unroll: Annotated[
        int,
        typer.Option(
            help="Steps of the training-time test; heads of medusa, stages of mlp-speculator.",
            show_default="7 for eagle3, 1 for eagle, else 5",
            min=0,
        ),
    ] = 0,
    decay: Annotated[float, typer.Option(help="Weight of each step over that of the one before.")] = 0.8,
    argmax_weight: Annotated[
        float,
        typer.Option(help="Part of the loss that wants the target's most likely token alone.", min=0, max=1),
    ] = 0.0,
    boundaries: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS",
            help="Boundaries that the head reads, as in 2,4,5.",
            show_default="2, N // 2 and N - 3 of N layers",
        ),
    ] = "",
    draft_vocab: Annotated[
        int,
        typer.Option(
            help="Tokens scored, the most frequent.", show_default="a quarter of the target's, at least 4096", min=0
        ),
    ] = 0,
    freeze_scores: Annotated[
        bool, typer.Option("--freeze-scores", help="Score with the target's rows, untrained (eagle3).")
    ] = False,
    intermediate_size: Annotated[
        int,
        typer.Option(
            help="Width of the head's MLP, of the state of mlp-speculator.",
            show_default="the target's; its states' for mlp-speculator",
            min=0,
        ),
    ] = 0,
    init: Annotated[
        str, typer.Option(metavar="target|random", help="Weights to begin with: the target's last layer, or noise.")
    ] = "target",
    epochs: Annotated[int, typer.Option(help="Times that each sequence is seen.", min=1)] = 10,
    max_steps: Annotated[int, typer.Option(help="Steps at most.", show_default="no limit", min=0)] = 0,
    row_length: Annotated[
        int, typer.Option(help="Tokens of a row, into which sequences are packed; longer ones are cut.", min=8)
    ] = 2048,
    batch_rows: Annotated[int, typer.Option(help="Rows of a step, over all processes.", min=1)] = 8,
    micro_rows: Annotated[
        int, typer.Option(help="Rows computed together by a process.", show_default="all of its share", min=0)
    ] = 0,
    graph: Annotated[
        bool, typer.Option(help="Have a GPU keep a step's work as a CUDA graph, where all its rows go together.")
    ] = True,
    optimizer: Annotated[
        str, typer.Option(metavar="adamw|muon", help="What follows the gradients; muon: of matrices, the rest AdamW's.")
    ] = "adamw",
    lr: Annotated[float, typer.Option(help="Greatest learning rate.")] = 1e-4,
    schedule: Annotated[str, typer.Option(metavar="cosine|constant", help="After the warm-up.")] = "cosine",
    warmup: Annotated[float, typer.Option(help="Part of the steps in which the learning rate rises.")] = 0.015,
    weight_decay: Annotated[float, typer.Option(help="Decoupled weight decay.", min=0)] = 0.0,
    clip: Annotated[float, typer.Option(help="Greatest norm of the gradient.")] = 0.5,
    chain: Annotated[
        int,
        typer.Option(
            help="Drafted tokens of the chain simulated on --heldout.",
            show_default="5, or as many as medusa has heads, mlp-speculator stages",
            min=0,
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of first weights, order and noise.")] = 0,
    log_every: Annotated[int, typer.Option(help="Steps between figures.", min=1)] = 10,
    evaluate_every: Annotated[
        int, typer.Option(help="Steps between figures on --heldout.", show_default="at the end", min=0)
    ] = 0,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 200,
    device: Annotated[str, typer.Option(help="cpu or cuda.", show_default="a GPU where there is one")] = "",
    check_labels: Annotated[bool, typer.Option(help="Refuse labels that the target can hardly have produced.")] = True,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what the folder has.")] = False,
) -> None:
    """Train a head on the target's hidden states and answers.

    Writes head/ (a Hugging Face folder in the family's public layout), metrics.jsonl and metrics.json, tensorboard/,
    checkpoints/ and manifest.json. An interrupted run goes on at its last checkpoint when it is started again, and
    comes to the same weights, bit for bit. Several GPUs: torchrun --nproc-per-node N -m training fit ...
    """
    from training.common.atomic_files import DamagedError, MismatchError
    from training.fit.labels import LabelError
    from training.fit.parallel import world
    from training.fit.run import DivergedError, remove_run
    from training.fit.run import fit as train
    from training.fit.settings import FitSettings, RunOptions

    if bool(features) == bool(answers):
        raise typer.BadParameter("name --features or --answers")
    if answers and model is None:
        raise typer.BadParameter("--answers needs the target's folder, --model")
    try:
        settings = FitSettings(
            family=family,
            unroll=unroll,
            decay=decay,
            argmax_weight=argmax_weight,
            boundaries=boundary_numbers(boundaries),
            draft_vocab=draft_vocab,
            freeze_scores=freeze_scores,
            intermediate_size=intermediate_size,
            start=start,
            init=cast(Literal["target", "random"], init),
            epochs=epochs,
            max_steps=max_steps,
            row_length=row_length,
            batch_rows=batch_rows,
            micro_rows=micro_rows,
            graph=graph,
            optimizer=cast(Literal["adamw", "muon"], optimizer),
            lr=lr,
            schedule=cast(Literal["cosine", "constant"], schedule),
            warmup=warmup,
            weight_decay=weight_decay,
            clip=clip,
            chain=chain,
            seed=seed,
        )
        with world(device) as group:
            if restart and group.leads:
                remove_run(out)
            group.wait()
            options = RunOptions(log_every, evaluate_every, checkpoint_every, group.leads, check_labels)
            online, on = bool(answers), str(group.device)
            source = _opened(answers or features or [], online, model, settings, on)
            held = _opened([heldout], online, model, settings, on) if heldout else None
            manifest = train(source, out, settings, options, group, held)
    except (LabelError, DamagedError, DivergedError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    except (ValueError, MismatchError) as error:
        raise typer.BadParameter(str(error)) from error
    if group.leads:
        measured = manifest["heldout"]
        told = f", acceptance length {measured['acceptance_length']:.2f} simulated on held-out" if measured else ""
        print(f"{manifest['steps']} steps, {manifest['head']['parameters']:,} parameters{told}; see {out / 'head'}")


def _opened(folders: list[Path], online: bool, model: Path | None, settings: FitSettings, device: str) -> FeatureSource:
    """Features on disk, or computed from answers as they are needed."""
    from slipstream_kernels.models.checkpoint.model_config import ModelConfig
    from training.features.concatenated import JoinedFeatures
    from training.features.dataset import FeatureSet
    from training.fit.family import family_of

    if not online:
        return JoinedFeatures([FeatureSet(folder, model) for folder in folders])
    from training.features.online import OnlineFeatures
    from training.features.settings import FeatureSettings, Machine

    assert model is not None
    config = ModelConfig.from_folder(model)
    wanted = FeatureSettings(family_of(settings).boundaries(config), min(settings.row_length, config.max_context))
    return OnlineFeatures(folders, model, wanted, Machine(device))
