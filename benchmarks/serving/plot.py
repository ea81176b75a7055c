"""Picture of a run: throughput against interactivity, and what a ramp yields second by second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]


def plot_serving(path: Path, content: Mapping[str, Any]) -> None:
    """Write a PNG or SVG, by the name's ending. Points are loads: up is more for all, right is more for each."""
    from matplotlib.figure import Figure

    cells: Sequence[Cell] = content["cells"]
    ramped = [cell for cell in cells if cell["tokens_by_second"]]
    steady = [cell for cell in cells if not cell["tokens_by_second"]]
    panels = [draw for draw, of in ((_frontier, steady), (_ramp, ramped)) if of]
    figure = Figure(figsize=(6.5 * max(1, len(panels)), 4.8), layout="constrained")
    for index, draw in enumerate(panels):
        draw(figure.add_subplot(1, len(panels), index + 1), steady if draw is _frontier else ramped)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _frontier(axes: Any, cells: Sequence[Cell]) -> None:
    for title, group in _groups(cells).items():
        points = [
            (cell["tokens_per_second_a_user"], cell["tokens_per_second"], cell["load"])
            for cell in group
            if cell["tokens_per_second_a_user"] and cell["tokens_per_second"]
        ]
        style = "--" if group[0]["kind"] == "open" else "-"
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], style, marker="o", label=title)
        for x, y, load in points:
            axes.annotate(load, (x, y), textcoords="offset points", xytext=(4, 4), fontsize="x-small")
    axes.set_xlabel("interactivity: tokens a second of a request (1 / median TPOT)")
    axes.set_ylabel("throughput: tokens a second of all")
    axes.set_yscale("log")
    _finish(axes)


def _ramp(axes: Any, cells: Sequence[Cell]) -> None:
    for title, group in _groups(cells).items():
        for cell in group:
            axes.stairs(cell["tokens_by_second"], label=title)
    axes.set_xlabel(f"seconds ({cells[0]['load']})")
    axes.set_ylabel("tokens within the second")
    _finish(axes)


def _groups(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells that one line joins, by its title: open loops apart, whose points mean rates and no clients."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        context = f", context {cell['context']}" if cell["context"] else ""
        kind = ", open loop" if cell["kind"] == "open" else ""
        groups.setdefault(f"{cell['form']}, {cell['budget']}{context}{kind}", []).append(cell)
    return groups


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")
