"""The report of a run, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def render(manifest: Mapping[str, Any]) -> str:
    """Markdown: what was read, kept and dropped, and masked samples of the personal data that was found."""
    return "\n".join(_lines(manifest)) + "\n"


def _lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    read, kept = manifest["read"], sum(manifest["kept"].values())
    yield "# Prompts"
    yield ""
    yield f"{read} lines were read, {kept} prompts kept ({_share(kept, read)}), {manifest['cleaned']} of them cleaned."
    yield ""
    yield from _table(
        ("split", "prompts", "tokens"),
        [(split, count, manifest["tokens"].get(split) or "-") for split, count in manifest["kept"].items()],
    )
    yield "## Dropped"
    yield ""
    dropped = sorted(manifest["dropped"].items(), key=lambda item: -item[1])
    yield from _table(("reason", "lines", "part"), [(name, count, _share(count, read)) for name, count in dropped])
    yield from _samples(manifest["dropped_samples"])
    yield "## Personal data"
    yield ""
    treatment = (
        "replaced by placeholders" if manifest["settings"]["personal"] == "replace" else "dropped with its prompt"
    )
    yield f"Looked for: {', '.join(manifest['settings']['kinds']) or 'nothing'}. What was found was {treatment}."
    yield ""
    found = sorted(manifest["personal_data"].items(), key=lambda item: -item[1])
    yield from _table(("kind", "found"), found)
    yield from _samples(manifest["personal_data_samples"])


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        yield from (f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)
    else:
        yield "None."
    yield ""


def _samples(samples: Mapping[str, list[str]]) -> Iterator[str]:
    for name, lines in samples.items():
        yield f"- {name}:"
        yield from (f"  - `{line.replace('`', chr(39))}`" for line in lines)
    yield ""
