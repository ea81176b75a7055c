"""Tables, goals and the plot of the speculation benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.report import markdown_table

TITLES = {
    "rounds": "Rounds with a head of random weights that is right as often as it is told to be",
    "trees": "Trees tried on real text, one request at a time",
    "categories": "Real text by category, one request at a time",
    "concurrency": "Real text at growing concurrency",
}
"""Sections in their order."""

Rows = Sequence[Mapping[str, Any]]


Sections = Mapping[str, dict[str, Any]]
"""By name: facts about the machine, and `rows`."""


def text(sections: Sections, described: Callable[[dict[str, Any]], str]) -> str:
    """All tables, each with its machine `described`, and how the goals were met."""
    parts = [
        f"*{title}* ({described(sections[name]['machine'])})\n\n{table(sections[name]['rows'])}"
        for name, title in TITLES.items()
        if name in sections
    ]
    met = list(goals(sections))
    if met:
        parts.append(f"*Goals*\n\n{markdown_table(('goal', 'measured', 'wanted', 'met'), met)}")
    return "\n\n".join(parts)


def table(rows: Rows) -> str:
    """A Markdown table of rows with the same columns."""
    return markdown_table(list(rows[0]), [list(row.values()) for row in rows])


def rows_of(sections: Sections, name: str) -> Rows:
    """A section's rows; none if it is not there."""
    rows: Rows = sections[name]["rows"] if name in sections else ()
    return rows


def goals(sections: Sections) -> Iterator[tuple[str, float, str, str]]:
    """What the figures at hand say of each goal: name, figure, bound, whether it is met."""
    rounds = {(row["drafter"], row["batch"]): row for row in rows_of(sections, "rounds")}
    for drafter, batch, most in (("chain", 1, 5.9), ("tree", 1, 6.4), ("tree, controller", 16, 12.0)):
        if row := rounds.get((drafter, batch)):
            yield _goal(f"round at batch {batch}, {drafter}, ms", row["round p50 ms"], most=most)
    for (drafter, batch), row in rounds.items():
        if batch == 64 and drafter.endswith("controller"):
            yield _goal(f"throughput at batch 64, {drafter}, x plain", row["x plain"], least=0.98)
    for row in rows_of(sections, "categories"):
        if row["category"] == "all":
            yield _goal("speculative bandwidth use at batch 1, %", row["bandwidth use %"], least=65.0)
            yield _goal("tokens/s at batch 1, x plain", row["x plain"], least=2.2)
    speeds = {(row["concurrency"], row["speculation"]): row["tokens/s"] for row in rows_of(sections, "concurrency")}
    if (64, "on") in speeds and (64, "off") in speeds:
        yield _goal("throughput at concurrency 64, x plain", speeds[64, "on"] / speeds[64, "off"], least=0.98)


def _goal(name: str, value: float, *, most: float = 0.0, least: float = 0.0) -> tuple[str, float, str, str]:
    met = value <= most if most else value >= least
    return name, value, f"at most {most:g}" if most else f"at least {least:g}", "yes" if met else "no"


def plot(path: Path, rows: Rows, title: str) -> None:
    """Time a token and throughput against concurrency, speculation on and off; PNG or SVG, by the name's ending."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for axes, column, label in zip(
        panels, ("TPOT p50 ms", "tokens/s"), ("time per output token, ms (median)", "output tokens/s"), strict=True
    ):
        for color, speculation in enumerate(("off", "on")):
            points = [(row["concurrency"], row[column]) for row in rows if row["speculation"] == speculation]
            axes.plot(*zip(*points, strict=True), marker="o", color=f"C{color}", label=f"speculation {speculation}")
        axes.set_xscale("log", base=2)
        ticks = sorted({row["concurrency"] for row in rows})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("requests in flight")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
