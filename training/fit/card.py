"""The model card of a head: README.md of its folder, from the manifest of the run that made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

CARD: Final = "README.md"
TITLES: Final = {
    "eagle3": "An EAGLE-3 head",
    "eagle": "An EAGLE-1 head",
    "mtp": "An MTP layer",
    "medusa": "Medusa heads",
    "mlp-speculator": "An MLP speculator",
    "draft-model": "A draft model",
}


def render(manifest: Mapping[str, Any]) -> str:
    """Markdown, with the front matter that model hubs read."""
    return "\n".join(_lines(manifest)).rstrip() + "\n"


def _lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    settings, target, head = manifest["settings"], manifest["target"], manifest["head"]
    family = settings["family"]
    yield from (
        "---",
        f"base_model: {target['name']}",
        "library_name: transformers",
        "tags: [speculative-decoding]",
        "---",
    )
    yield from ("", f"# {target['name']}-{family}", "")
    yield (
        f"{TITLES[family]} for {target['name']}, a model of {target['layers']} layers of {target['hidden_size']} and "
        f"{target['vocab_size']:,} tokens, made by `slipstream train fit`."
    )
    yield from ("", "## Shape", "")
    yield from _table(("", ""), _shape(manifest, head))
    yield from (
        "## Use",
        "",
        "```sh",
        f"slipstream serve --model {target['name']} --draft {family}:THIS_FOLDER",
        "```",
        "",
    )
    yield "Requests get exactly what the model alone would have given them, in fewer of its steps."
    yield from ("", "## Data", "")
    yield from _data(manifest["data"])
    yield from ("## Training", "", f"{manifest['steps']:,} steps with these settings:", "")
    yield from _table(("setting", ""), _settings(settings))
    yield from ("## Figures", "")
    yield from _figures(manifest["heldout"])


def _shape(manifest: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "parameters", f"{head['parameters']:,}"
    yield "boundaries whose states it learnt from", ", ".join(map(str, manifest["reads"]))
    if "draft_vocab" in head:
        yield "tokens scored", f"{head['draft_vocab']:,} of {manifest['target']['vocab_size']:,}"
        yield "their part of the tokens produced in training", f"{head['coverage']:.2%}"
    if head.get("heldout_coverage") is not None:
        yield "and of those held out", f"{head['heldout_coverage']:.2%}"


def _data(data: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{data['sequences']:,} sequences of {data['prompts']:,} conversations: {data['tokens']:,} tokens, of which "
        f"{data['produced']:,} are learnt from, the target's own answers."
    )
    if data["recorded"]:
        yield f"Of the sequences {data['recorded']:,} are recordings of what others said, in its place."
    yield ""
    rows = [(name, f"{of['sequences']:,}", f"{of['produced']:,}") for name, of in data["categories"].items()]
    yield from _table(("set", "sequences", "tokens learnt from"), rows)
    yield "What may be done with it depends on the licences of the target, which wrote the answers, and of the prompts."
    yield ""


def _settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if name in ("family", "boundaries") or value in (0, None, []):
            continue
        yield name.replace("_", " "), Path(value).name if name == "start" else str(value)


def _figures(heldout: Mapping[str, Any] | None) -> Iterator[str]:
    if heldout is None:
        yield "None: there was no held-out set. `slipstream train evaluate` measures what it yields in the engine."
        return
    yield (
        f"A chain of {heldout['chain']} yields {heldout['acceptance_length']:.2f} tokens a verify step, bonus token "
        "included, simulated at temperature 0 on held-out answers. `slipstream train evaluate` measures what it yields "
        "in the engine, as a chain and as a tree."
    )
    yield ""
    steps = zip(heldout["accuracy_by_step"], heldout["accepted_by_step"], strict=True)
    rows = [(str(step), f"{right:.1%}", f"{taken:.1%}") for step, (right, taken) in enumerate(steps, 1)]
    yield from _table(("token of the chain", "right", "accepted where those before it were"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
    yield ""
