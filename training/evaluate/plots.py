"""The report's figures, as SVG to stand in a page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_STYLE: dict[Any, Any] = {"svg.hashsalt": "slipstream", "svg.fonttype": "none", "font.size": 9.0}
"""Equal figures are equal bytes; text stays text."""


def position_plot(measured: Mapping[str, Sequence[float]], simulated: Sequence[float]) -> str:
    """How often at least k tokens of a tree were right, by k; one line a cell, and that of the simulation dashed."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for label, rates in measured.items():
            axes.plot(range(1, len(rates) + 1), rates, marker="o", markersize=3, label=label)
        if simulated:
            axes.plot(range(1, len(simulated) + 1), simulated, "k--", label="simulated")
        axes.set_xlabel("position in the tree")
        axes.set_ylabel("accepted to this position")
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return _finished(figure, axes)


def curve_plot(curves: Mapping[str, Sequence[float]], names: Sequence[str], title: str) -> str:
    """Series of training against `step`."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for name in names:
            axes.plot(curves["step"], curves[name], linewidth=1, label=name)
        axes.set_xlabel("step")
        axes.set_ylabel(title)
        return _finished(figure, axes)


def category_plot(rows: Sequence[str], cells: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Acceptance length by category, a bar a cell with twice its standard error; pairs follow `rows`."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.4, 0.9 + 0.09 * len(rows) * (len(cells) + 1)), layout="constrained")
        axes = figure.add_subplot()
        height = 0.8 / max(len(cells), 1)
        for number, (label, pairs) in enumerate(cells.items()):
            places = [row + number * height for row in range(len(rows))]
            lengths, errors = [pair[0] for pair in pairs], [2 * pair[1] for pair in pairs]
            axes.barh(places, lengths, height, xerr=errors, label=label, error_kw={"linewidth": 0.8})
        axes.set_yticks([row + 0.4 - height / 2 for row in range(len(rows))], list(rows))
        axes.set_ylim(len(rows), -height)
        axes.set_xlabel("tokens a verify step")
        return _finished(figure, axes)


def _finished(figure: Figure, axes: Any) -> str:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
