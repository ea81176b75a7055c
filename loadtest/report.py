"""Tables and plots of levels."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.measure import Level

TABLE_WIDTH = 132

COLUMNS = {
    "api": "API",
    "concurrency": "streams",
    "answers": "answers",
    "failures": "failed",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p95_ms": "p95",
    "tpot_p50_ms": "TPOT p50 ms",
    "tpot_p95_ms": "p95 ",
    "tokens_per_second": "tokens/s",
    "requests_per_second": "answers/s",
    "tokens_per_step": "tokens a step",
}
PLOTS = {
    "ttft_p50_ms": "Time to first token, median (ms)",
    "tpot_p50_ms": "Time per output token, median (ms)",
    "tokens_per_second": "Output tokens a second, all streams",
}


def print_table(levels: Sequence[Level]) -> None:
    """To standard output."""
    table = Table(box=SIMPLE_HEAD)
    for title in COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for level in levels:
        table.add_row(*(_cell(getattr(level, name)) for name in COLUMNS))
    Console(width=TABLE_WIDTH).print(table)


def write_files(levels: Sequence[Level], folder: Path) -> list[Path]:
    """levels.json, levels.csv and one PNG a plot; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    document = folder / "levels.json"
    document.write_text(json.dumps([asdict(level) for level in levels], indent=2) + "\n", encoding="utf-8")
    sheet = folder / "levels.csv"
    with sheet.open("w", encoding="utf-8", newline="") as output:
        writer = csv.DictWriter(output, [field.name for field in fields(Level)])
        writer.writeheader()
        writer.writerows(asdict(level) for level in levels)
    return [document, sheet, *(_plot(levels, name, title, folder / f"{name}.png") for name, title in PLOTS.items())]


def _plot(levels: Sequence[Level], name: str, title: str, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for api in dict.fromkeys(level.api for level in levels):
        points = [(level.concurrency, getattr(level, name)) for level in levels if level.api == api]
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=api)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({level.concurrency for level in levels}))
    axes.get_xaxis().set_major_formatter("{x:.0f}")
    axes.set_xlabel("concurrent streams")
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return path


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.1f}"
    return str(value)
