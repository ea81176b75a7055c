"""The scene `scale` as a picture: times to the first token, streams and replicas over a step of load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.percentiles import percentile

BIN_SECONDS = 2.0


def binned(points: Sequence[Sequence[float]], share: float) -> tuple[list[float], list[float]]:
    """Middles of time bins, and the percentile of what began in each; of (seconds, value)."""
    bins: dict[int, list[float]] = {}
    for at, value in points:
        bins.setdefault(int(at // BIN_SECONDS), []).append(value)
    found = [((number + 0.5) * BIN_SECONDS, percentile(values, share)) for number, values in sorted(bins.items())]
    return [at for at, _ in found], [value for _, value in found if value is not None]


def draw(path: Path, facts: dict[str, Any]) -> None:
    """Write a PNG. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 4.5), height_ratios=(3, 1))
    points = [point for point in facts["first_token_at_seconds"] if point[0] >= 0]
    for share, label in ((0.5, "median"), (0.9, "90th percentile")):
        above.plot(*binned(points, share), label=label)
    above.set_ylabel("time to first token, s")
    above.set_ylim(bottom=0)
    above.legend(frameon=False)
    for values, label in ((facts["streams_at_seconds"], "streams"), (facts["replicas_at_seconds"], "replicas")):
        axis = below if label == "replicas" else below.twinx()
        axis.step(*zip(*values, strict=True), where="post", color="C2" if label == "replicas" else "C7")
        axis.set_ylabel(label, color="C2" if label == "replicas" else "C7")
        axis.set_ylim(bottom=0)
    below.set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
