"""Step time against rows, one line a batch and mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STYLES = {"exact": "-", "fast": "--"}


def plot_verify(path: Path, modes: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> None:
    """Write a PNG or SVG, by the name's ending. `modes`: rows of the verify section by mode."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    batches = list(dict.fromkeys(row["batch"] for rows in modes.values() for row in rows))
    for mode, rows in modes.items():
        for color, batch in enumerate(batches):
            points = [(row["rows"], row["step ms"]) for row in rows if row["batch"] == batch]
            label = f"batch {batch}, {mode}"
            style = STYLES.get(mode, ":")
            axes.plot(*zip(*points, strict=True), style, marker="o", markersize=3, color=f"C{color}", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = sorted({row["rows"] for rows in modes.values() for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("rows a request, root included")
    axes.set_ylabel("verify step, ms")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
