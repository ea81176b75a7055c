"""`slipstream train prompts`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def prompts(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...",
            help="JSON lines, also gzipped: messages, conversations, turns, or a text in prompt, question, instruction "
            "or text. Of folders, all *.jsonl, *.ndjson and their .gz.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the results.")],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the target, whose tokenizer counts.", show_default="no filter by length"
        ),
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="Field that holds the text or messages.", show_default="found")
    ] = None,
    keep_answers: Annotated[
        bool,
        typer.Option(
            "--keep-answers", help="Clean and keep what assistants said as well, and plain texts, for `recorded`."
        ),
    ] = False,
    min_tokens: Annotated[int, typer.Option(help="Shortest prompt, without its template.", min=0)] = 1,
    max_tokens: Annotated[
        int, typer.Option(help="Longest prompt (with --keep-answers, conversation), without its template.", min=1)
    ] = 2048,
    max_characters: Annotated[int, typer.Option(help="Longest prompt, with or without --model.", min=1)] = 200_000,
    languages: Annotated[
        str, typer.Option(metavar="CODES", help="Languages to keep, as in en,de.", show_default="all")
    ] = "",
    language_confidence: Annotated[
        float, typer.Option(help="How sure of another language one must be to drop a prompt.", min=0.0, max=1.0)
    ] = 0.9,
    kinds: Annotated[
        str,
        typer.Option(
            metavar="KINDS",
            help="Personal data to look for: email, phone, card, account, national_id, address, ip, secret; or none. "
            "Names are looked for with --names.",
            show_default="all of these",
        ),
    ] = "all",
    personal: Annotated[
        str, typer.Option(metavar="replace|drop", help="What becomes of personal data: a placeholder, or no prompt.")
    ] = "replace",
    phone_regions: Annotated[
        str, typer.Option(metavar="CODES", help="Countries whose phone numbers are known without their +code.")
    ] = "US,GB,DE,FR,IN",
    names: Annotated[
        str | None,
        typer.Option(
            metavar="PIPELINE",
            help="Look for names with this spaCy pipeline, which is a download of its own (python -m spacy download "
            "en_core_web_sm), or a folder that holds one.",
            show_default="names are left",
        ),
    ] = None,
    similarity: Annotated[
        float, typer.Option(help="Jaccard similarity from which prompts are duplicates.", min=0.1, max=1.0)
    ] = 0.8,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Prompts that are evaluated on: what equals one, or nearly so, is dropped; repeat it for several.",
            show_default=False,
        ),
    ] = None,
    heldout: Annotated[float, typer.Option(help="Part kept from training, by hash.", min=0.0, max=0.9)] = 0.05,
    workers: Annotated[int, typer.Option(help="Processes.", show_default="half the cores, at most 8", min=0)] = 0,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what the folder has.")] = False,
) -> None:
    """Clean recorded prompts: near-duplicates, personal data, lengths and languages; split by hash.

    Needs the package's extra `prompts`, and no network. Writes train.jsonl, heldout.jsonl, dropped.jsonl (origin and
    reason), report.md (counts, masked samples) and manifest.json (settings, hashes).
    """
    from training.prompts.records import input_files
    from training.prompts.run import clean_prompts
    from training.prompts.settings import MODEL_FREE_KINDS, PromptSettings
    from training.prompts.store import remove_run

    chosen = {"all": MODEL_FREE_KINDS, "none": ()}.get(kinds, _listed(kinds))
    if unknown := sorted(set(chosen) - set(MODEL_FREE_KINDS)):
        raise typer.BadParameter(f"unknown kinds: {', '.join(unknown)}")
    if personal not in ("replace", "drop"):
        raise typer.BadParameter("--personal is replace or drop")
    settings = PromptSettings(
        model=model,
        field=field,
        keep_answers=keep_answers,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        max_characters=max_characters,
        languages=_listed(languages),
        language_confidence=language_confidence,
        kinds=(*chosen, *(("name",) if names else ())),
        personal=personal,
        phone_regions=_listed(phone_regions),
        names=names,
        similarity=similarity,
        heldout=heldout,
    )
    try:
        files, evaluated = input_files(inputs), input_files(against or [])
        if restart:
            remove_run(out)
        manifest = clean_prompts(files, out, settings, against=evaluated, workers=workers or _default_workers())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"{error}; install the package's extra `prompts`") from error
    kept = sum(manifest["kept"].values())
    print(f"kept {kept} of {manifest['read']} prompts; see {out / 'report.md'}")
    raise typer.Exit(0 if kept else 1)


def _listed(codes: str) -> tuple[str, ...]:
    return tuple(code.strip() for code in codes.split(",") if code.strip())


def _default_workers() -> int:
    return max(1, min(8, (os.cpu_count() or 1) // 2))
