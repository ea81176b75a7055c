"""Pictures of what proposers yielded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_acceptance(path: Path, content: Mapping[str, Any]) -> None:
    """Write a PNG or SVG, by the name's ending: bars of acceptance lengths, a panel a temperature."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cells = [cell for cell in content["cells"] if cell["setting"] != "plain"]
    temperatures = list(dict.fromkeys(cell["temperature"] for cell in cells))
    figure, panels = plt.subplots(
        len(temperatures), figsize=(8, 2.6 * len(temperatures)), layout="constrained", sharex=True, squeeze=False
    )
    for panel, temperature in zip(panels[:, 0], temperatures, strict=True):
        _bars(panel, [cell for cell in cells if cell["temperature"] == temperature])
        panel.set_title(f"T = {temperature:g}", fontsize="small")
        panel.set_ylabel("tokens a verify step")
    panels[0, 0].legend(fontsize="x-small", ncols=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _bars(panel: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    settings = list(dict.fromkeys(cell["setting"] for cell in cells))
    places = list(dict.fromkeys((cell["workload"], cell["category"]) for cell in cells))
    width = 0.8 / len(settings)
    for index, setting in enumerate(settings):
        found = {(c["workload"], c["category"]): c["acceptance_length"] for c in cells if c["setting"] == setting}
        at = [place + (index - (len(settings) - 1) / 2) * width for place in range(len(places))]
        panel.bar(at, [found.get(place) or 0.0 for place in places], width, label=setting)
    names = [workload if category == "all" else category for workload, category in places]
    panel.set_xticks(range(len(places)), names, rotation=30, ha="right", fontsize="x-small")
    panel.set_ylim(bottom=1.0)
    panel.grid(axis="y", alpha=0.3)


def plot_search(path: Path, content: Mapping[str, Any]) -> None:
    """Write a PNG or SVG: every candidate's speed over its acceptance length, and plain decoding's as a line."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    rows = content["rows"]
    for proposer in dict.fromkeys(row["proposer"] for row in rows):
        points = [(row["acceptance_length"], row["tokens_a_second"]) for row in rows if row["proposer"] == proposer]
        if proposer:
            panel.plot(*zip(*points, strict=True), "o", markersize=4, label=proposer)
        else:
            panel.axhline(points[0][1], color="gray", linestyle="--", label="plain decoding")
    panel.set_xlabel("tokens a verify step")
    panel.set_ylabel("tokens/s")
    panel.grid(alpha=0.3)
    panel.legend(fontsize="x-small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
