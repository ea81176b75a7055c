"""What came of a storm: figures, and which promises were broken."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.chaos.events import Event
from benchmarks.chaos.watch import Looks, lived_through
from benchmarks.lib.mixed_client import CONNECTION, MALFORMED, ClientOutcome
from benchmarks.lib.percentiles import spread
from benchmarks.lib.process_samples import FLAT_BYTES, FLAT_DESCRIPTORS, ProcessSample

Facts = dict[str, Any]
ALLOWED = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED"})
"""What a request may be told that is not answered."""
BROKEN_OFF = frozenset({"UNAVAILABLE", "CANCELLED", CONNECTION, MALFORMED})
"""What a client sees of a gateway that is killed."""
RECONNECT_SECONDS = 3.0
"""How long clients may take to find a gateway that is back."""
KILLED_SECONDS = 0.1
"""After a signal no answer is that of the killed process any more."""
SEEN_SECONDS = 3.0
"""Within which looks find out what has happened to a service."""
KILLER_CODE = "INTERNAL"
FLAT_THREADS = 8
"""Pools of threads grow to their size with use."""
_SHOWN = 5
"""Examples of a kind of failure that are kept."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is promised: seconds without progress or an answer, and the part of calm throughput while verify is up."""

    silence_seconds: float
    least_goodput: float


@dataclass(slots=True)
class Run:
    """All that was seen. `calm_rate` is tokens a second without events; `ends` are services that the launcher had to
    start again and how they ended; `complete`: all services ran and all proposers were attached in the end.
    """

    outcomes: Sequence[ClientOutcome]
    differing: int
    calm_rate: float
    storm_seconds: tuple[float, float]
    """begin and end of the events, time.perf_counter()"""
    events: Sequence[Event] = ()
    verify: Looks = field(default_factory=Looks)
    gateway: Looks = field(default_factory=Looks)
    killers: Sequence[ClientOutcome] = ()
    killer_asked: bool = False
    before: Mapping[str, ProcessSample] = field(default_factory=dict)
    during: Sequence[dict[str, ProcessSample]] = ()
    after: Mapping[str, ProcessSample] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    ends: Sequence[tuple[str, str]] = ()
    tracebacks: Mapping[str, int] = field(default_factory=dict)
    complete: bool = True


def judge(run: Run, bounds: Bounds) -> tuple[Facts, list[str]]:
    """Figures of a run, and each promise that it broke."""
    requests = _requests(run, bounds)
    goodput = _goodput(run)
    processes, grown = _processes(run)
    unasked = sorted({f"{name} {how}" for name, how in run.ends if how != "was ended by SIGKILL"})
    killers = Counter(_code(outcome) for outcome in run.killers)
    facts = {
        "requests": requests,
        "events": _events(run.events),
        "pauses_ms": _pauses(run),
        "goodput": goodput,
        "killers": dict(killers),
        "processes": processes,
        "left_behind": dict(run.left),
        "services_started_again": dict(Counter(name for name, _ in run.ends)),
        "tracebacks": dict(run.tracebacks),
    }
    broken = {
        "no answers": not requests["answered"],
        "answers differ": requests["differing"],
        "errors that are not allowed": requests["not_allowed"],
        "errors without Retry-After": requests["without_retry_after"],
        "no progress in time": requests["late"],
        "left behind": any(run.left.values()),
        "not all services were there in the end": not run.complete,
        "goodput": goodput["of_calm"] < bounds.least_goodput,
        "grown: " + ", ".join(grown): grown,
        "ended by themselves: " + ", ".join(unasked): unasked,
        "tracebacks": run.tracebacks,
        "killer": run.killer_asked and set(killers) != {KILLER_CODE},
    }
    return facts, [name for name, is_so in broken.items() if is_so]


def _requests(run: Run, bounds: Bounds) -> Facts:
    out = _gateway_out(run)
    codes: Counter[str] = Counter()
    unallowed: list[ClientOutcome] = []
    unsaid: list[ClientOutcome] = []
    excused = 0
    for outcome in run.outcomes:
        failure = outcome.failure
        if failure is None:
            continue
        if failure.code in BROKEN_OFF and failure.retry_after is None and _within(out, outcome):
            excused += 1
            continue
        codes[failure.code] += 1
        if failure.code not in ALLOWED:
            unallowed.append(outcome)
        elif failure.retry_after is None and not (failure.in_stream and outcome.question.api != "grpc"):
            unsaid.append(outcome)
    losses = losses_of_verify(run)
    silences = [(silence_of(outcome, losses), outcome) for outcome in run.outcomes]
    late = [(seconds, outcome) for seconds, outcome in silences if seconds > bounds.silence_seconds]
    return {
        "asked": len(run.outcomes),
        "answered": sum(outcome.answered for outcome in run.outcomes),
        "left": sum(outcome.failure is None and not outcome.manner.expects_answer for outcome in run.outcomes),
        "differing": run.differing,
        "errors": dict(codes),
        "broken_off_with_the_gateway": excused,
        "not_allowed": len(unallowed),
        "without_retry_after": len(unsaid),
        "late": len(late),
        "longest_silence_s": round(max((seconds for seconds, _ in silences), default=0.0), 2),
        "silence_bound_s": bounds.silence_seconds,
        "examples": [_example(outcome) for outcome in [*unallowed[:_SHOWN], *unsaid[:_SHOWN]]],
        "late_examples": [f"{seconds:.1f} s: {_example(outcome)}" for seconds, outcome in late[:_SHOWN]],
    }


def silence_of(outcome: ClientOutcome, losses: Sequence[float]) -> float:
    """The longest time in seconds for which nothing came of a request; what a client spent itself is not counted.

    An answer that is not streamed shows its progress to nobody: its time is shared among the `losses` of the verify
    service in it, each of which may cost as long a wait.
    """
    if outcome.manner.reading == "slowly":
        return 0.0
    if outcome.question.api != "grpc" and not outcome.manner.streamed:
        within = sum(outcome.started <= at <= outcome.ended for at in losses)
        return (outcome.ended - outcome.started) / (1 + within)
    marks = (outcome.started, *outcome.arrivals, outcome.ended)
    return max(later - earlier for earlier, later in itertools.pairwise(marks))


def losses_of_verify(run: Run) -> list[float]:
    """When the verify service was killed or stopped, or fell silent without such an event, in order."""
    made = [each.begin for each in run.events if each.target == "verify" and each.kind in ("kill", "stop")]
    falls = [at for at in run.verify.falls() if not any(at - SEEN_SECONDS <= event <= at for event in made)]
    return sorted([*made, *falls])


def _gateway_out(run: Run) -> list[tuple[float, float]]:
    """From and to when clients could not reach a gateway that had been killed."""
    kills = [event.begin for event in run.events if (event.kind, event.target) == ("kill", "gateway")]
    return [(at, run.gateway.next_up(at + KILLED_SECONDS) + RECONNECT_SECONDS) for at in kills]


def _within(spans: Iterable[tuple[float, float]], outcome: ClientOutcome) -> bool:
    return any(begin <= outcome.ended and outcome.started <= end for begin, end in spans)


def _events(events: Sequence[Event]) -> Facts:
    """How many of each kind there were, and what came of swaps and attacks."""
    said: Counter[str] = Counter()
    for event in events:
        if event.kind in ("hostile", "swap"):
            said[f"{event.kind}: {event.target}: {event.what}"] += 1
    return {
        "counts": dict(Counter(f"{event.kind} {event.target}" for event in events)),
        "not_there": sum(event.what == "was not there" for event in events),
        "said": dict(said.most_common(4 * _SHOWN)),
    }


def _pauses(run: Run) -> Facts:
    """Of streams that are read steadily: between any two messages, and those into which a loss of verify fell."""
    losses = losses_of_verify(run)
    usual: list[float] = []
    hit: list[float] = []
    for outcome in run.outcomes:
        if outcome.manner.reading != "slowly":
            for earlier, later in itertools.pairwise(outcome.arrivals):
                usual.append(later - earlier)
                if bisect.bisect(losses, later) > bisect.bisect_left(losses, earlier):
                    hit.append(later - earlier)
    return {"all": spread(usual), "at_losses_of_verify": spread(hit), "at_losses": len(hit)}


def _goodput(run: Run) -> Facts:
    """Tokens that reached clients in the storm, a second of it in which the verify service answered."""
    begin, end = run.storm_seconds
    tokens = sum(
        count
        for outcome in run.outcomes
        for at, count in zip(outcome.arrivals, outcome.tokens, strict=True)
        if begin <= at <= end
    )
    up = run.verify.up_seconds(begin, end)
    rate = tokens / up if up else 0.0
    return {
        "tokens": tokens,
        "seconds": round(end - begin, 1),
        "verify_up_seconds": round(up, 1),
        "tokens_per_second_up": round(rate, 1),
        "tokens_per_second_calm": round(run.calm_rate, 1),
        "of_calm": round(rate / run.calm_rate, 3) if run.calm_rate else 0.0,
    }


def _processes(run: Run) -> tuple[Facts, list[str]]:
    """Each process before and after, idle both times, and what of it has grown."""
    facts: Facts = {}
    grown: list[str] = []
    for name, before in run.before.items():
        after = run.after.get(name)
        if after is None:
            continue
        same = before.pid == after.pid and lived_through(run.during, name)
        curve = [before.rss, *(sample[name].rss for sample in run.during if name in sample), after.rss]
        facts[name] = {
            "same_process": same,
            "rss_mib": [_mib(before.rss), _mib(after.rss)],
            "rss_grown_in_second_half_mib": _mib(after.rss - curve[(len(curve) - 1) // 2]) if same else None,
            "descriptors": [before.descriptors, after.descriptors],
            "threads": [before.threads, after.threads],
        }
        too_much = {
            "memory": same and after.rss - curve[(len(curve) - 1) // 2] > FLAT_BYTES,
            "descriptors": after.descriptors - before.descriptors > FLAT_DESCRIPTORS,
            "threads": after.threads - before.threads > FLAT_THREADS,
        }
        grown += [f"{what} of {name}" for what, is_so in too_much.items() if is_so]
    return facts, grown


def _code(outcome: ClientOutcome) -> str:
    return "answered" if outcome.failure is None else outcome.failure.code


def _example(outcome: ClientOutcome) -> str:
    how = "streamed" if outcome.manner.streamed else "whole"
    seconds = outcome.ended - outcome.started
    said = "" if outcome.failure is None else f"{outcome.failure.code}: {outcome.failure.message[:160]}"
    return f"{outcome.question.api}, {how}, {outcome.manner.reading}, {seconds:.1f} s, {outcome.total} tokens: {said}"


def _mib(count: int) -> float:
    return round(count / 2**20, 1)
