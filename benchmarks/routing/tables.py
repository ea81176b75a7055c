"""What is printed of the figures, and written into the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.lib.report import markdown_table

_CASES: Final = {
    "simulated": ("requests/s", "prompts"),
    "looped": ("clients a service", "prompt", "output"),
    "crowded": ("prefixes", "requests/s"),
    "served": ("prompts",),
}
"""What tells the runs of a part apart, besides the policy."""

_TIMES: Final = {"ttft_mean_ms": "TTFT ms, mean", "ttft_p50_ms": "p50", "ttft_p90_ms": "p90"}


def text(content: Mapping[str, Any]) -> str:
    """A table for each part that was measured."""
    found = [f"*{part}*\n\n{_runs(content[part], keys)}" for part, keys in _CASES.items() if part in content]
    if "decisions" in content:
        rows = content["decisions"]
        count = content["settings"]["replicas"]
        table = markdown_table([name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows])
        found.append(f"*decisions* among {count} services, microseconds of processor time\n\n{table}")
    facts = content["machine"]
    measured = f"Measured {facts['time']}, {facts['processor']}, {facts['cores']} cores, source {facts['commit']}."
    return "\n\n".join((*found, measured))


def _runs(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """A line for each case and policy: medians of its rounds."""
    cases: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault((*(str(row[key]) for key in keys), row["policy"]), []).append(row)
    lines = [
        (
            *case,
            *(f"{statistics.median(row[key] for row in found):.0f}" for key in _TIMES),
            f"{100 * statistics.median(row['hit_rate'] for row in found):.0f} %",
        )
        for case, found in cases.items()
    ]
    return markdown_table((*keys, "policy", *_TIMES.values(), "prompt tokens cached"), lines)
