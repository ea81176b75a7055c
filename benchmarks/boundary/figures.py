"""What the boundary benchmark's figures mean: from times to a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from benchmarks.boundary.link import LinkState, Span, TimedLink
from benchmarks.boundary.plan import DraftReport
from benchmarks.boundary.rounds import Round, lengths, median, percentile, rounds
from benchmarks.boundary.settings import LOCKSTEP, PLAIN, Measured, Setting
from benchmarks.boundary.tables import Row
from benchmarks.local_engine.local_loop import Arrival
from benchmarks.local_engine.measured_model import PassTimes


@dataclass(frozen=True, slots=True)
class Watched:
    """Deliveries of consecutive rounds; `times` are of as many rounds again, and None on the CPU."""

    arrivals: Sequence[Arrival]
    times: PassTimes | None

    @property
    def window(self) -> Span:
        """From the first delivery to the last."""
        return self.arrivals[0].at, self.arrivals[-1].at


def plain_row(measured: Measured, watched: Watched) -> Row:
    """Steps without a drafter."""
    return _empty(measured) | {"transport": "", "mode": PLAIN, "states": False} | _round(watched)


def setting_row(
    measured: Measured,
    setting: Setting,
    watched: Watched | None = None,
    link: TimedLink | None = None,
    report: DraftReport | None = None,
    state: LinkState | None = None,
    *,
    note: str = "",
) -> Row:
    """Rounds of a setting; without what was measured, `note` says why."""
    row = _empty(measured) | {"transport": setting.transport, "mode": setting.mode, "states": setting.states}
    row |= {"rows": setting.rows, "depth": setting.depth, "right": setting.right, "note": note or _asleep(setting)}
    if watched is None or link is None or report is None or state is None:
        return row
    row |= _round(watched) | _spans(watched, link) | _tree_figures(state, setting) | _drafter(report)
    return row | (_split(watched, link, report) if setting.mode == LOCKSTEP else {})


def _empty(measured: Measured) -> Row:
    split = {f"{part.name} us": None for part in fields(Round)}
    names = ("round ms", "p90 ms", "p99 ms", "mean ms", "idle us", "idle p90 us", "drafted", "accepted")
    others = ("tokens a round", "hits", "pass us", "device round us", "draft GPU us", "commit us", "wait us")
    nothing = dict.fromkeys((*names, *others, "rounds", "rounds split", "rows", "depth", "right", "round times ms"))
    return {"place": measured.place, "requests": measured.requests, **nothing, **split, "note": ""}


def _round(watched: Watched) -> Row:
    arrivals, times = watched.arrivals, watched.times
    steps = [1e3 * (b.at - a.at) for a, b in pairwise(arrivals)]
    drafted = sum(arrival.drafted for arrival in arrivals[1:])
    decided = sum(arrival.tokens for arrival in arrivals[1:])
    per_step = len(steps) * arrivals[-1].requests
    idle = [] if times is None else times.before_drafted() if drafted else times.between_passes()
    return {
        "round ms": median(steps),
        "p90 ms": percentile(steps, 0.9),
        "p99 ms": percentile(steps, 0.99),
        "mean ms": sum(steps) / len(steps),
        "idle us": median(idle),
        "idle p90 us": percentile(idle, 0.9),
        "pass us": None if times is None else median(times.graphs()),
        "device round us": None if times is None else median(times.drafted_rounds()),
        "drafted": drafted / per_step,
        "accepted": decided / per_step - 1,
        "tokens a round": decided / per_step,
        "rounds": len(steps),
        "round times ms": steps,
    }


def _spans(watched: Watched, link: TimedLink) -> Row:
    """How long the loop was busy with telling the drafter, and with trees until it had them."""
    window = watched.window
    return {
        "commit us": _us(median(lengths(link.commits, window))),
        "wait us": _us(median(lengths(link.collections, window))),
    }


def _split(watched: Watched, link: TimedLink, report: DraftReport) -> Row:
    """Of rounds in lockstep."""
    drafted = [(begun, ended) for begun, ended, _ in report.trees]
    found = rounds(link.commits, link.collections, drafted, watched.window)
    parts: Row = {
        f"{part.name} us": _us(median([getattr(each, part.name) for each in found])) for part in fields(Round)
    }
    return parts | {"rounds split": len(found)}


def _tree_figures(state: LinkState, setting: Setting) -> Row:
    """Of the time from the first request on: how often a tree was there, and by which transport it really came."""
    if not state.drafters:
        return {"note": "the drafter has left before the end"}
    (drafter,) = state.drafters
    stats = drafter.stats
    found, asked = stats.hits, stats.hits + stats.misses
    other = drafter.transport != setting.transport
    note = f"came by {drafter.transport}" if other else _asleep(setting)
    return {"hits": found / asked if asked else None, "note": note}


def _asleep(setting: Setting) -> str:
    return "" if setting.spins else "nobody spins"


def _drafter(report: DraftReport) -> Row:
    return {
        "draft GPU us": _us(median([seconds for _, _, seconds in report.trees])),
        "draft bytes": report.size,
        "states received": report.rows,
        "states on the device": report.on_device,
        "calls for trees": len(report.trees),
        "drafting us": _us(median([ended - begun for begun, ended, _ in report.trees])),
    }


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else 1e6 * seconds
