"""What rounds of trace_cost say: each way beside the plain one, round by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.lib.report import markdown_table

HEADER = ("requests at a time", "way", "rounds", "tokens/s, ratio", "mean, 95 %", "processor time, ratio", "bound")
NORMAL_95 = statistics.NormalDist().inv_cdf(0.975)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The median between the quartiles."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def mean_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean between the limits of its 95 % interval, if the logarithms' errors are normal."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    error = NORMAL_95 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return math.exp(middle - error), math.exp(middle), math.exp(middle + error)


def text(content: dict[str, Any]) -> str:
    """The tables, and how to read them."""
    pieces = [[name, _microseconds(values)] for name, values in content["pieces"].items()]
    parts = [
        [
            part["streams"],
            part["way"],
            len(part["rate_ratios"]),
            _ratio(quartiles(part["rate_ratios"])),
            _ratio(mean_interval(part["rate_ratios"])),
            _ratio(quartiles(part["cpu_ratios"])) if part["cpu_ratios"] else None,
            part["bound"],
        ]
        for part in content["parts"]
    ]
    tables = [markdown_table(header, rows) for header, rows in ((("piece", "us"), pieces), (HEADER, parts)) if rows]
    facts = content["machine"]
    where = facts.get("gpu") or f"{facts['cores']} cores of {facts['processor']}"
    note = (
        "Medians of what turns and rounds add to plain ones beside them, or of ratios to these, and the quartiles; the "
        "mean is geometric, its interval takes rounds as independent; "
        f"answers compared. Processor time is that of all services. Measured {facts['time']} on {where}, load average "
        f"{facts['load_average']} at the end."
    )
    return "\n\n".join([*tables, note])


def _ratio(found: tuple[float, float, float]) -> str:
    low, middle, high = found
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def _microseconds(values: Sequence[float]) -> str:
    low, middle, high = quartiles(values)
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"
