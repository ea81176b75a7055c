"""The boundary benchmark's rows beside their baselines, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.boundary.settings import BEHIND, LOCKSTEP, PLACES
from benchmarks.lib.report import markdown_table

Row = dict[str, Any]
"""Rows of one benchmark have the same keys; what a setting has not is None."""
OVER = "over in process us"
ROUND_COLUMNS = (
    "place", "transport", "mode", "states", "round ms", "p90 ms", "p99 ms", OVER, "idle us", "idle p90 us",
    "drafted", "accepted", "tokens a round", "hits", "note",
)  # fmt: skip
SPLIT_COLUMNS = (
    "place", "transport", "mode", "states", "verify us", "pass us", "to_draft us", "drafting us", "draft GPU us",
    "back us", "commit us", "wait us", "rounds split", "states on the device",
)  # fmt: skip
BETWEEN = "idle between us"
BEHIND_COLUMNS = ("place", "transport", "round ms", "device round us", "pass us", "draft GPU us", BETWEEN, "accepted")


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with the microseconds that its median round takes beyond that of its proposer in process."""
    baselines = {_proposer(row): row["round ms"] for row in rows if row["transport"] == "inproc"}
    return [row | {OVER: _beyond(row["round ms"], baselines.get(_proposer(row)))} for row in rows]


def behind_passes(rows: Sequence[Row]) -> list[Row]:
    """Rounds of heads behind passes, with the time in which the device had neither a pass nor a draft to do.

    The pass is that of as many rows whose trees the host knew: its events lie around the pass alone.
    """
    alone = {(row["place"], row["rows"]): row["pass us"] for row in rows if row["mode"] == LOCKSTEP}
    found = []
    for row in rows:
        if row["mode"] == BEHIND:
            parts = row["device round us"], alone.get((row["place"], row["rows"])), row["draft GPU us"]
            whole, alone_us, draft = parts
            between = None if None in parts else whole - alone_us - draft
            found.append(row | {"pass us": alone_us, BETWEEN: between})
    return found


def rows_of(content: Mapping[str, Any]) -> list[Row]:
    """The rows of all places of a file, each beside its baseline."""
    return [row for place in content["places"].values() for row in compared(place["rows"])]


def text_of(content: Mapping[str, Any]) -> str:
    """Both tables, the codec's times, and what could not be measured."""
    rows = rows_of(content)
    drafted = [row for row in rows if row["transport"] and row["mode"] != BEHIND]
    parts = [_table(rows, ROUND_COLUMNS), _table(drafted, SPLIT_COLUMNS)]
    if any(row["mode"] == BEHIND for row in rows):
        parts.append(behind_text(content))
    for place, found in content["places"].items():
        parts += [f"{PLACES[place]}: {found[why]}" for why in ("failure", "missing") if found.get(why)]
        for name, figures in found.get("codec", {}).items():
            parts.append(
                f"{PLACES[place]}, {name}: " + ", ".join(f"{key} {value:.1f}" for key, value in figures.items())
            )
    return "\n\n".join(parts)


def behind_text(content: Mapping[str, Any]) -> str:
    """The table of heads that draft behind passes; on a second GPU only of those in a process of their own."""
    rows = behind_passes(rows_of(content))
    return _table([row for row in rows if row["draft GPU us"] is not None], BEHIND_COLUMNS)


def _table(rows: Sequence[Row], names: Sequence[str]) -> str:
    return markdown_table(names, [[row.get(name) for name in names] for row in rows]) if rows else "nothing"


def _proposer(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["place"], row["mode"] == BEHIND, row["states"], row["rows"], row["depth"], row["right"]


def _beyond(value: float | None, baseline: float | None) -> float | None:
    return None if value is None or baseline is None else 1e3 * (value - baseline)
