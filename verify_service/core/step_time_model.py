"""What a verify pass takes, by the requests in it and the nodes that are drafted for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from verify_service.core.expert_overlap import ExpertOverlap

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FAST = 0.1
"""Share of the newest of what is measured in steps: a mean of some ten, which one that is held up moves by a tenth."""
_FAR = 1 << 16
"""Nodes by which a table is extended."""
LEAST_SECONDS = 1e-9
"""Of a pass or a round, whatever was measured or said: others are counted in them."""
_LEAST_FACTOR, _MOST_FACTOR = 0.1, 10.0
"""Of what was measured at start-up, how much passes may take."""
_MOST_OFF = 2.0
"""Times what is expected, or less by so many times, that one pass counts for: some capture a graph."""
_PLAIN_KNOWN = 256
"""Passes with nodes since the last one without, from which on they may as well tell what requests alone take.

Before that what all of them take longer is the price of trees, however small: a pass of requests alone would look as
dear as one with trees, and trees worth their price, as long as there are trees in all of them.
"""
_LEAST_READ = 0.1
"""Of what further requests add to a mixture's pass, what reading their context is taken for at least."""
PROFILED_CONTEXT = 1024
"""Tokens that each request has before it in the passes that are measured at start-up."""


class StepTimeModel:
    """Seconds of a pass of some requests and nodes: measured at start-up, interpolated, corrected by what passes take.

    More nodes never cost less. Four factors correct the table: of what requests take without nodes, of what any nodes
    add to that, of what each adds, and of what reading the context adds beyond that of the measured passes. A pass
    moves each by its share (normalised least mean squares); the first two share what one with nodes moves them by, the
    more to the first the longer ago the last one without is. All answers are for requests of the mean context of the
    latest pass.
    """

    def __init__(self, measured: Iterable[tuple[int, int, float]], experts: ExpertForm | None = None) -> None:
        """`measured` has (requests, rows, seconds) of passes; rows are those of the requests and of their nodes.

        experts: those of a mixture, whose passes were measured with rows that choose them independently. Nodes wake
        fewer of them than such rows do, whose time a pass is spared.

        One entry says that all cost the same. Beyond the most requests measured, one more costs what a node does.
        """
        by_requests: dict[int, dict[int, float]] = {}
        for requests, rows, seconds in measured:
            by_requests.setdefault(requests, {})[rows - requests] = max(seconds, LEAST_SECONDS)
        self.experts = None if experts is None else ExpertOverlap(experts)
        self._requests = sorted(by_requests)
        knots = sorted({nodes for each in by_requests.values() for nodes in each})
        self._knots: Floats = np.array([*knots, knots[-1] + _FAR], float)
        """Numbers of nodes of which the table has the seconds; between them they are interpolated."""
        self._table = np.maximum.accumulate(np.maximum.accumulate(self._rising(by_requests), axis=1), axis=0)
        """[requests, nodes]"""
        self._plain = self._drafted = self._read = 1.0
        self._trees = 0.0
        """What any nodes add to `_plain`."""
        self._since_plain = 0 if self._table.size > 2 else _PLAIN_KNOWN
        """Passes with nodes since the last one without, for which those that were measured at start-up count."""
        self._token_seconds = self._seconds_of_a_token()
        self._expert_seconds = self._seconds_of_an_expert()
        self._beyond = 0.0
        """Tokens that a request of the latest pass has beyond the profiled context; may be negative."""
        self._known: dict[int, Floats] = {}
        """By requests, the table's seconds with 0, 1, 2, ... nodes, as far as was asked for."""

    @property
    def factors(self) -> tuple[float, float, float, float]:
        """Those that correct the table, and what requests have come to take each by their context, in seconds."""
        return self._plain, self._trees, self._drafted, self._read * self._token_seconds * self._beyond

    def seconds(self, requests: int, nodes: int = 0) -> float:
        """Of one pass."""
        in_table = self._up_to(requests, nodes)
        return self._corrected(requests, nodes > 0, float(in_table[nodes]), float(in_table[0]))

    def growth(self, requests: int) -> float:
        """How many times longer a pass of so many requests takes than one of a single request, as measured at first."""
        return float(self._up_to(requests, 0)[0] / self._up_to(1, 0)[0])

    def predict(self, requests: int, nodes: Floats, awake: Floats | None = None) -> Floats:
        """Of passes with so many nodes each, on average perhaps.

        awake: of a mixture, what they count as of rows that choose experts independently, both ascending; as many as
        they are if None.
        """
        in_table = self._in_table(requests, nodes) if awake is None else self._spared(requests, nodes, awake)
        return self._corrected(requests, nodes > 0, in_table, self._up_to(requests, 0)[0])

    def predict_range(self, requests: int, nodes: int, count: int) -> Floats:
        """Of `count` passes, the first with so many nodes and each of the others with one more than the one before."""
        in_table = self._up_to(requests, nodes + count)
        drafted = np.arange(nodes, nodes + count) > 0
        return self._corrected(requests, drafted, in_table[nodes : nodes + count], in_table[0])

    def observe(
        self,
        requests: int,
        nodes: int,
        seconds: float,
        context: float = PROFILED_CONTEXT,
        awake: float | None = None,
    ) -> None:
        """Take in one pass, of requests that have so many tokens each before them on average.

        awake: as of `predict`.
        """
        self._beyond = context - PROFILED_CONTEXT
        in_table = self._up_to(requests, nodes)
        plain, whole = float(in_table[0]), float(in_table[nodes])
        if awake is not None:
            whole = float(self._spared(requests, np.array([nodes], float), np.array([awake]))[0])
        added, read = whole - plain, requests * self._token_seconds * self._beyond
        base = self._plain + self._trees if nodes else self._plain
        expected = max(base * plain + self._drafted * added + self._read * read, _LEAST_FACTOR * plain)
        seen = min(max(seconds, expected / _MOST_OFF), expected * _MOST_OFF)
        step = FAST * (seen - expected) / (plain * plain + added * added + read * read)
        self._since_plain = min(self._since_plain + 1, _PLAIN_KNOWN) if nodes else 0
        share = self._since_plain / _PLAIN_KNOWN if nodes else 1.0
        self._plain = _within(self._plain + share * step * plain)
        self._trees = min(max(self._trees + (1.0 - share) * step * plain, 0.0), _MOST_FACTOR)
        self._drafted = _within(self._drafted + step * added)
        self._read = _within(self._read + step * read)

    def excess(self, requests: int, seconds: float) -> float:
        """Of a pass without nodes, by how much of what is expected it took longer, or less; once as much at most."""
        return min(seconds / self.seconds(requests), _MOST_OFF) - 1.0

    @overload
    def _corrected(self, requests: int, drafted: bool, in_table: float, plain: float) -> float: ...

    @overload
    def _corrected(self, requests: int, drafted: Bools, in_table: Floats, plain: float) -> Floats: ...

    def _corrected(self, requests: int, drafted: Any, in_table: Any, plain: float) -> Any:
        """`drafted`: whether the pass of which the table has that has any nodes. One pass takes no arrays."""
        read = requests * self._read * self._token_seconds * self._beyond
        alone = max(self._plain * plain + read, _LEAST_FACTOR * plain)
        return self._drafted * (in_table - plain) + alone + self._trees * plain * drafted

    def _seconds_of_a_token(self) -> float:
        """To read a token of context, which is most of what a further request adds; 0 where that was not measured.

        Of a mixture most of that is experts that its row wakes, as a further row of the requests there are does, too.
        """
        more = self._requests[-1] - self._requests[0]
        if not more:
            return 0.0
        added = float(self._table[-1, 0] - self._table[0, 0])
        if self.experts is not None:
            of_rows = float(np.interp(more, self._knots, self._table[0]) - self._table[0, 0])
            added = max(added - of_rows, _LEAST_READ * added)
        return added / (more * PROFILED_CONTEXT)

    def _seconds_of_an_expert(self) -> float:
        """Of one more that is awake, by passes of the fewest requests up to those that wake half of all.

        Less what a row takes beside so many that all are awake.
        """
        most = float(self._knots[-2])
        if self.experts is None or not most:
            return 0.0
        line = self._table[0]
        woken = self.experts.independent(self._requests[0] + self._knots)
        half = min(int(np.searchsorted(woken, woken[-1] / 2)), len(line) - 2)
        of_a_row = (line[-2] - np.interp(most / 2, self._knots, line)) / (most / 2)
        added = line[half] - line[0] - of_a_row * self._knots[half]
        return max(0.0, float(added / (woken[half] - woken[0]))) if half else 0.0

    def _spared(self, requests: int, nodes: Floats, awake: Floats) -> Floats:
        """The table's seconds for ever more nodes, less those of experts that they do not wake; see `predict`."""
        assert self.experts is not None
        asleep = self.experts.independent(requests + nodes) - self.experts.independent(requests + awake)
        spared = self._in_table(requests, nodes) - self._expert_seconds * asleep
        return np.maximum.accumulate(np.maximum(spared, self._in_table(requests, awake)))

    def _up_to(self, requests: int, nodes: int) -> Floats:
        """The table's seconds with 0, 1, 2, ... nodes, up to so many at least."""
        known = self._known.get(requests)
        if known is None or nodes >= len(known):
            known = self._known[requests] = self._in_table(requests, np.arange(2.0 * (nodes + 1)))
        return known

    def _in_table(self, requests: int, nodes: Floats) -> Floats:
        beyond = max(0, requests - self._requests[-1])
        at = float(np.interp(requests, self._requests, np.arange(len(self._requests))))
        low = int(at)
        high = min(low + 1, len(self._requests) - 1)
        line = self._table[low] + (at - low) * (self._table[high] - self._table[low])
        seconds: Floats = np.interp(nodes + beyond, self._knots, line)
        return seconds

    def _rising(self, by_requests: dict[int, dict[int, float]]) -> Floats:
        """The seconds at all knots. Nodes beyond those that were measured add what they add to more requests."""
        rows: list[Floats] = []
        above: Floats | None = None
        for requests in reversed(self._requests):
            nodes, seconds = (
                np.array(each, float) for each in zip(*sorted(by_requests[requests].items()), strict=True)
            )
            line: Floats = np.interp(self._knots, nodes, seconds)
            beyond = self._knots > nodes[-1]
            if above is not None:
                last = np.interp(nodes[-1], self._knots, above)
                line[beyond] += above[beyond] - last
            elif len(nodes) > 1:
                slope = max(0.0, (seconds[-1] - seconds[-2]) / (nodes[-1] - nodes[-2]))
                line[beyond] += slope * (self._knots[beyond] - nodes[-1])
            rows.append(line)
            above = line
        return np.array(rows[::-1])


def _within(factor: float) -> float:
    return min(max(factor, _LEAST_FACTOR), _MOST_FACTOR)
