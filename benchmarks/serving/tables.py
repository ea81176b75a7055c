"""Tables of a file of results, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.lib.report import markdown_table
from benchmarks.serving.forms import PLAIN
from benchmarks.serving.measures import least_ratio

Cell = Mapping[str, Any]
Key = tuple[str, str, int]
"""Form, budget and context of a line."""

COLUMNS = {
    "tokens_per_second": "tokens/s",
    "ttft_ms_p50": "TTFT p50, ms",
    "ttft_ms_p99": "p99",
    "tpot_ms_p50": "TPOT p50, ms",
    "tpot_ms_p99": "p99",
    "itl_ms_p50": "between messages p50, ms",
    "itl_ms_p99": "p99",
    "tokens_a_message": "tokens a message",
    "tokens_a_step": "tokens a step",
}
GOODPUT = {"goodput": "goodput, tokens/s", "good_share": "answers within bounds"}


def text(content: Mapping[str, Any]) -> str:
    """All tables: tokens a second at a glance, each cell in full, gains, ramps, starts; how the answers compared."""
    cells: Sequence[Cell] = content["cells"]
    failed = [f"{name} failed: {facts['failure']}" for name, facts in content["servers"].items() if "failure" in facts]
    parts = [overview(cells), *details(cells), gains(cells), ramps(cells), starts(content["servers"]), *failed]
    return "\n\n".join([*filter(None, parts), compared(content["comparison"]), _note(content)])


def overview(cells: Sequence[Cell]) -> str:
    """Tokens a second: a line a form and budget, a column a load."""
    loads = list(dict.fromkeys(cell["load"] for cell in cells))
    rows = [
        [_title(key), *(_of_load(group, load, "tokens_per_second") for load in loads)] for key, group in _lines(cells)
    ]
    return "Tokens a second.\n\n" + markdown_table(("requests at a time, or a second", *loads), rows) if rows else ""


def details(cells: Sequence[Cell]) -> list[str]:
    """Each cell in full, a table a form, budget and context."""
    found = []
    for key, group in _lines(cells):
        columns = COLUMNS | (GOODPUT if any(cell["goodput"] is not None for cell in group) else {})
        rows = [[cell["load"], *(cell[name] for name in columns), _failures(cell)] for cell in group]
        found.append(f"*{_title(key)}*\n\n{markdown_table(('load', *columns.values(), 'failed'), rows)}")
    return found


def gains(cells: Sequence[Cell]) -> str:
    """How many times as fast as plain decoding prices said that trees would make it, and as it came; empty without."""
    rows: list[list[object]] = []
    for cell in cells:
        if cell["form"] == PLAIN or cell.get("predicted_gain") is None:
            continue
        key = PLAIN, cell["context"], cell["load"]
        plain = next((c for c in cells if (c["form"], c["context"], c["load"]) == key), None)
        base = plain["tokens_per_second"] if plain else None
        came = cell["tokens_per_second"] / base if base and cell["tokens_per_second"] else None
        rows.append([_title(_key(cell)), cell["load"], cell["predicted_gain"], came, cell["steps_with_trees"]])
    header = ("times plain decoding", "load", "as predicted", "as it came", "steps whose trees were to pay")
    return markdown_table(header, rows) if rows else ""


def ramps(cells: Sequence[Cell]) -> str:
    """Tokens a second of a ramp in the mean, and the worst second beside plain decoding's; empty without a ramp."""
    ramped = [cell for cell in cells if cell["tokens_by_second"]]
    rows: list[list[object]] = []
    for cell in ramped:
        plain = next((c for c in ramped if c["form"] == PLAIN and c["context"] == cell["context"]), None)
        worst = least_ratio(cell["tokens_by_second"], plain["tokens_by_second"]) if plain else None
        rows.append([_title(_key(cell)), cell["load"], cell["tokens_per_second"], worst])
    header = ("", "requests at a time", "tokens/s, mean", "worst second / plain's")
    return markdown_table(header, rows) if rows else ""


def starts(servers: Mapping[str, Mapping[str, Any]]) -> str:
    """How long each form took to be ready and to draft, and by which way its drafts come; empty for other servers."""
    keys = ("seconds_to_greeting", "seconds_to_attached", "transport", "draft_device")
    rows: list[list[object]] = [
        [name, *(facts.get(key) for key in keys)] for name, facts in servers.items() if keys[0] in facts
    ]
    header = ("form", "serve greets after, s", "drafter attached after, s", "transport", "drafts on")
    return markdown_table(header, rows) if rows else ""


def compared(comparison: Mapping[str, Any]) -> str:
    """A sentence, and the first answers that differ."""
    by_ids, by_text = comparison["compared_by_token_ids"], comparison["compared_by_text"]
    told = (
        f"Of {by_ids + by_text} answers that were compared with the first one to the same of {comparison['prompts']} "
        f"prompts, {by_ids} token by token and {by_text} by their text, {comparison['differing']} differ."
    )
    examples = [
        f"- {each['cell']}: prompt {each['prompt']}, {each['unit']} {each['at']}: {each['found']}, "
        f"where {each['reference']} has {each['expected']}"
        for each in comparison["examples"]
    ]
    return "\n".join([told, *examples])


def line(cell: Cell) -> str:
    """A cell in one line, for who waits for the next."""
    shown = {"tokens/s": "tokens_per_second", "TTFT ms": "ttft_ms_p50", "TPOT ms": "tpot_ms_p50"}
    figures = ", ".join(f"{name} {cell[key]:.1f}" for name, key in shown.items() if cell[key] is not None)
    failed = f", failed: {_failures(cell)}" if cell["failures"] else ""
    return f"{_title(_key(cell))}, load {cell['load']}: {figures}, differing {cell['differing']}{failed}"


def _note(content: Mapping[str, Any]) -> str:
    settings, facts = content["settings"], content["machine"]
    where = (
        f"{facts['gpu']}, driver {facts['driver']}"
        if "gpu" in facts
        else f"{facts['cores']} cores of {facts['processor']}"
    )
    contexts = "; ".join(
        f"{_context(int(context)) or 'as they are'}, {'unknown' if mean is None else f'{mean:.0f}'} tokens in the mean"
        for context, mean in settings["prompt_tokens"].items()
    )
    return (
        f"{settings['prompts']} prompts ({contexts}), {settings['new_tokens']} new tokens each, T = 0, streamed to "
        f"{settings['processes']} processes; sent before, untimed: {settings['warm']}. "
        f"Measured {facts['time']} on {where}, source {facts['commit']}."
    )


def _lines(cells: Sequence[Cell]) -> Iterator[tuple[Key, list[Cell]]]:
    keys = dict.fromkeys(map(_key, cells))
    for key in keys:
        yield key, [cell for cell in cells if _key(cell) == key]


def _key(cell: Cell) -> Key:
    return cell["form"], cell["budget"], cell["context"]


def _title(key: Key) -> str:
    form, budget, context = key
    return ", ".join(filter(None, (form, budget, _context(context))))


def _context(context: int) -> str:
    return f"context {context}" if context else ""


def _of_load(group: Sequence[Cell], load: str, name: str) -> float | None:
    return next((cell[name] for cell in group if cell["load"] == load), None)


def _failures(cell: Cell) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in cell["failures"].items()) or "0"
