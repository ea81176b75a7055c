"""The figures of a long run as tables by quarters, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.report import markdown_table

Facts = dict[str, Any]
_COUNTS = ("descriptors", "threads", "cores", "idle_descriptors", "idle_threads")


def text(facts: Facts) -> str:
    """Latency and throughput of each quarter, and what each process holds in it."""
    header = ("quarter", "answered", "failed", "tokens/s", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99")
    rows: list[list[object]] = [
        [
            *(number, each["answered"], each["failed"], each["tokens_per_second"]),
            *(each[what].get(name) for what in ("ttft_ms", "tpot_ms") for name in ("p50", "p99")),
        ]
        for number, each in enumerate(facts["quarters"], start=1)
    ]
    return f"{markdown_table(header, rows)}\n\n{_processes(facts['processes'])}"


def _processes(processes: Mapping[str, Facts]) -> str:
    header = (
        *("process", "RSS MiB by quarter", "MiB an hour, 2nd half", "descriptors", "threads", "cores busy"),
        *("descriptors idle", "threads idle"),
    )
    rows: list[list[object]] = [
        [
            *(name, _listed(found["rss_mib"]), found["mib_per_hour"]),
            *(_listed(found.get(what, ())) for what in _COUNTS),
        ]
        for name, found in processes.items()
    ]
    return markdown_table(header, rows)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "-"


def plot(path: Path, windows: Mapping[str, Any]) -> None:
    """Write a PNG: memory of each process, latency, descriptors, over minutes. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    minutes = [second / 60 for second in windows["seconds"]]
    figure, (memory, latency, counts) = plt.subplots(3, figsize=(7, 7), layout="constrained", sharex=True)
    for name, found in windows["processes"].items():
        memory.plot(minutes, found["rss_mib"], label=name)
        if "descriptors" in found:
            (line,) = counts.plot(minutes, found["descriptors"], label=f"{name}: descriptors")
            counts.plot(minutes, found["threads"], ":", color=line.get_color(), label=f"{name}: threads")
    for what in ("ttft_ms", "tpot_ms"):
        for name, style in (("p50", "-"), ("p99", ":")):
            values = [None if value is None else float(value) for value in windows[what][name]]
            latency.plot(minutes, values, style, label=f"{what[:4].upper()} {name}")
    for panel, title in ((memory, "resident memory, MiB"), (latency, "latency, ms"), (counts, "number")):
        panel.set_ylabel(title)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="x-small", ncols=4)
    memory.set_yscale("log")
    latency.set_yscale("log")
    counts.set_xlabel("minutes")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
