"""Tables and picture of the fairness benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.lib.report import markdown_table

_FIGURES = ("ttft_ms_p50", "ttft_ms_p90", "tpot_ms_p50", "tpot_ms_p90", "tokens_per_second", "requests", "refused")
_COLOURS = {"fair": "tab:blue", "fcfs": "tab:orange"}


def tables(content: Mapping[str, Any]) -> str:
    """What each tenant got, then the ratios to the baselines."""
    header = (
        *("scheduling", "scenario", "tenant", "TTFT p50, ms", "p90", "TPOT p50, ms", "p90"),
        *("tokens/s", "answers", "refused"),
    )
    rows: list[list[object]] = [
        [scheduling, scenario, crowd, *(seen[key] for key in _FIGURES)]
        for scheduling, measured in content["figures"].items()
        for scenario, crowds in measured.items()
        for crowd, seen in crowds.items()
    ]
    parts = [markdown_table(header, rows)]
    if content["ratios"]:
        names = ("scheduling", "scenario", "tenant", "TTFT p50, times the baseline", "p90", "TPOT p50", "p90")
        parts.append(markdown_table(names, [list(each.values()) for each in content["ratios"]]))
    return "\n\n".join(parts)


def plot(path: Path, content: Mapping[str, Any]) -> None:
    """Write a PNG or SVG, by the name's ending: times of the measured tenants over those of their baselines."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    names = list(dict.fromkeys(f"{each['tenant']}, {each['scenario']}" for each in content["ratios"]))
    for axis, (key, label) in zip(
        axes, (("ttft_p50", "time to first token"), ("tpot_p50", "time a token")), strict=True
    ):
        for offset, (scheduling, colour) in zip((-0.2, 0.2), _COLOURS.items(), strict=True):
            found = {
                f"{each['tenant']}, {each['scenario']}": each[key] or 0.0
                for each in content["ratios"]
                if each["scheduling"] == scheduling
            }
            places = [place + offset for place in range(len(names))]
            bars = axis.barh(places, [found.get(name, 0.0) for name in names], 0.36, color=colour, label=scheduling)
            axis.bar_label(bars, fmt="%.2f", fontsize="x-small", padding=2)
        axis.axvline(1.5, color="black", linewidth=0.8, linestyle="--")
        axis.set_xlabel(f"{label}, times that of an equal share (medians)", fontsize="small")
        axis.set_yticks(range(len(names)), names, fontsize="small")
        axis.grid(axis="x", alpha=0.3)
        axis.margins(x=0.12)
    axes[0].legend(fontsize="small", title="--scheduling")
    axes[0].invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
