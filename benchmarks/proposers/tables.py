"""Tables of what proposers yielded, from the JSON that the measurements write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.lib.report import markdown_table

Content = Mapping[str, Any]
Cell = Mapping[str, Any]
Show = Callable[[Cell], object]

ALL_WORKLOADS = "all workloads"
"""The row that sums all others but the mixed one."""
UNCOUPLED = "-uncoupled"
"""Ends the name of a setting that drafts as the one before it does, but without the request's noise."""

MEASURES: dict[str, tuple[str, Show]] = {
    "acceptance length": ("tokens a verify step, the bonus token included", lambda cell: cell["acceptance_length"]),
    "speed": ("tokens/s of all requests in flight", lambda cell: round(cell["tokens_a_second"])),
    "draft time": ("milliseconds that a verify step waited for trees", lambda cell: cell["draft_ms"]),
}


def acceptance(content: Content) -> str:
    """A table a workload: all answers, and in brackets those that do not repeat a 16-gram."""

    def show(cell: Cell) -> str:
        figures = (cell["acceptance_length"], cell["fresh_acceptance_length"])
        first, second = ("-" if figure is None else f"{figure:.2f}" for figure in figures)
        return f"{first} ({second})"

    cells = content["cells"]
    parts: list[str] = []
    for workload in dict.fromkeys(cell["workload"] for cell in cells):
        chosen = [cell for cell in cells if cell["workload"] == workload]
        header, rows = _grid(chosen, show)
        totals = [cell for cell in chosen if cell["category"] == "all"]
        rows.append(["answers that repeat", *(f"{100 * c['repeating'] / c['answers']:.1f} %" for c in totals)])
        parts.append(f"{workload}:\n\n{markdown_table(header, rows)}")
    return "\n\n".join([*parts, _note(content)])


def lengths(content: Content) -> str:
    """As `proposers`, without what depends on time."""
    return proposers(content, ("acceptance length",))


def proposers(content: Content, measures: Sequence[str] = tuple(MEASURES)) -> str:
    """A table a temperature and measure."""
    parts: list[str] = []
    for name in measures:
        unit, show = MEASURES[name]
        for temperature in dict.fromkeys(cell["temperature"] for cell in content["cells"]):
            chosen = [cell for cell in content["cells"] if cell["temperature"] == temperature]
            header, rows = _grid(chosen, show, named=False)
            parts.append(f"*{name}, T = {temperature:g}* ({unit})\n\n{markdown_table(header, rows)}")
    return "\n\n".join([*parts, _note(content)])


def coupling(content: Content) -> str:
    """Acceptance lengths with the request's noise and without it, and what the noise brings."""
    cells = {(c["workload"], c["category"], c["temperature"], c["setting"]): c for c in content["cells"]}
    names = list(dict.fromkeys(setting for *_, setting in cells if setting + UNCOUPLED in {key[-1] for key in cells}))
    header = ["workload", "T", *(part for name in names for part in (f"{name}, uncoupled", f"{name}, coupled", "gain"))]
    rows: list[list[object]] = []
    for workload, category, temperature in dict.fromkeys(key[:-1] for key in cells):
        row: list[object] = [_label(workload, category), f"{temperature:g}"]
        for name in names:
            with_noise, without = (
                cells[workload, category, temperature, each]["acceptance_length"] for each in (name, name + UNCOUPLED)
            )
            row += [without, with_noise, f"{100 * (with_noise / without - 1):+.1f} %"]
        rows.append(row)
    return f"{markdown_table(header, rows)}\n\n{_note(content)}"


def search(content: Content) -> str:
    """Every candidate, those that lasted longest first, and what to start the services with."""
    header = (
        "setting",
        "rounds lasted",
        "answers",
        "tokens a step",
        "draft, ms a step",
        "tokens/s",
        "against plain decoding",
    )
    rows: list[list[object]] = [
        [
            *(row["setting"], row["rounds"], row["answers"], row["acceptance_length"], row["draft_ms"]),
            *(round(row["tokens_a_second"]), f"{row['against_plain']:.2f}"),
        ]
        for row in content["rows"]
    ]
    best = "\n".join(f"- {goal}: `{arguments}`" for goal, arguments in content["best"].items())
    return f"{markdown_table(header, rows)}\n\n{best}\n\n{_note(content)}"


def _grid(cells: Sequence[Cell], show: Show, *, named: bool = True) -> tuple[list[str], list[list[object]]]:
    """Header and rows: a row a category (of one workload if `named`), a column a setting and temperature."""
    columns = list(dict.fromkeys((cell["temperature"], cell["setting"]) for cell in cells))
    values = {(c["workload"], c["category"], c["temperature"], c["setting"]): c for c in cells}
    rows: list[list[object]] = []
    for workload, category in dict.fromkeys((cell["workload"], cell["category"]) for cell in cells):
        found = [values.get((workload, category, *column)) for column in columns]
        label = category if named else _label(workload, category)
        rows.append([label, *(None if cell is None else show(cell) for cell in found)])
    titles = [f"{setting}, T={temperature:g}" if named else setting for temperature, setting in columns]
    return ["category" if named else "workload", *titles], rows


def _runs(cells: Sequence[Cell]) -> list[Cell]:
    """Those that are no sums over others."""
    parted = {cell["workload"] for cell in cells if cell["category"] != "all"}
    return [
        c for c in cells if c["workload"] != ALL_WORKLOADS and (c["category"] != "all" or c["workload"] not in parted)
    ]


def _label(workload: str, category: str) -> str:
    return workload if category == "all" else f"{workload}: {category}"


def _note(content: Content) -> str:
    facts, settings = content["machine"], content["settings"]
    said = [
        f"{settings['limit'] or 'All'} prompts a row, {settings['tokens']} new tokens each.",
        f"{settings['concurrency']} in flight.",
        f"Measured {facts['time']} on {facts['cores']} cores of {facts['processor']}, torch {facts['torch']}.",
    ]
    late = sum(cell.get("missed", 0) for cell in _runs(content.get("cells", ())))
    if late:
        said.append(f"{late} trees were not there at the deadline, and cost acceptance.")
    if facts["load_average"] > 0.5 * facts["cores"]:
        said.append(
            f"Other processes kept the machine busy (load average {facts['load_average']:.1f} before the start), "
            "which times depend on."
        )
    return " ".join(said)
