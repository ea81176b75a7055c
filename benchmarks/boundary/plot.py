"""Picture of the boundary benchmark: what a round takes in each setting, beside the same proposer in process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.boundary.settings import LOCKSTEP, PLACES

_PARTS = {"to_draft us": "to the drafter", "drafting us": "drafting", "back us": "back"}


def plot_boundary(path: Path, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Write a PNG or SVG, by the name's ending: rounds as boxes, and beside them what lockstep rounds wait for."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    measured = [row for row in rows if row["round times ms"]]
    height = 1.2 + 0.28 * len(measured)
    figure, (whole, parts) = plt.subplots(1, 2, figsize=(11, height), layout="constrained", sharey=True)
    whole.boxplot([row["round times ms"] for row in measured], orientation="horizontal", whis=(1, 99), sym="")
    whole.set_yticks(range(1, len(measured) + 1), [_label(row) for row in measured], fontsize="small")
    whole.invert_yaxis()
    whole.set_xlabel("round, ms (quartiles, 1st to 99th percentile)")
    left = [0.0] * len(measured)
    for name, label in _PARTS.items():
        widths = [(row[name] or 0.0) if row["mode"] == LOCKSTEP else 0.0 for row in measured]
        parts.barh(range(1, len(measured) + 1), widths, left=left, label=label)
        left = [sum(pair) for pair in zip(left, widths, strict=True)]
    parts.set_xlabel("from a decision to its trees, us (medians)")
    parts.legend(fontsize="x-small")
    for axes in (whole, parts):
        axes.grid(axis="x", alpha=0.3)
    figure.suptitle(title, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _label(row: Mapping[str, Any]) -> str:
    states = ", states" if row["states"] else ""
    note = f", {row['note']}" if row["note"] else ""
    return f"{PLACES[row['place']]}: {row['transport']} {row['mode']}{states}{note}".replace(":  ", ": ")
