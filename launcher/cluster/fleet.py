"""What the controller decides: which replicas to start, drain and stop. Knows no Ray, no network and no clock."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from launcher.cluster.autoscaler import Autoscaler, Load, Scaling
from launcher.cluster.replica_spec import ReplicaSpec

PLACE_SECONDS: Final = 5.0
"""For which a replica waits for a place before an old one makes room for it."""
SETTLE_SECONDS: Final = 1.0
"""From when a drain is published until an empty replica counts as left by all gateways."""
EARLY_SECONDS: Final = 3.0
"""For which a replica has spent too little on its start for that to be worth a place beside another one."""
SPREAD_SECONDS: Final = 30.0
"""From one move of a replica that serves to an empty node to the next."""
FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 10.0
RESUME_SECONDS: Final = 10.0
"""After the loss of a replica, for which none moves, and nothing is prepared while requests wait: what that takes of a
host's processors would be missing where requests of the lost one are computed anew."""
STANDBY_PLACE_SECONDS: Final = 30.0
"""For which one that is to stand by waits for a place; then the room that was seen has gone."""
DOUBT_SECONDS: Final = 3.0
"""For which others on the node of a lost replica are doubted: they may be lost as well, and not yet known to be."""
STANDBY_DELAY: Final = 10.0
"""From a replica that failed to stand by to the next attempt."""
NOTES_KEPT: Final = 50
MOST_FAILURES: Final = 3
"""Starts in a row that fail before an upgrade is taken back."""


class State(Enum):
    """Of a replica, in the order of its life. One that stands by serves once it is asked to start."""

    STANDBY = "standby"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"


@dataclass(slots=True)
class Record:
    """One replica. Times are of the caller's clock, in seconds.

    asked: it is to go whatever the number wanted, as an operator said so of it or of its node, or as it moves.
    moves: it goes for the sake of a node that has none, unless no replica comes to serve there.
    warm: it stood by before it started. prepared: its processes stand by.
    since: when its state began. load: None as long as it is not known.
    bits: what makes answers of two replicas equal; replicas take each other's streams where it is.
    """

    number: int
    generation: int
    since: float
    state: State = State.STARTING
    node: str = ""
    address: str = ""
    asked: bool = False
    moves: bool = False
    warm: bool = False
    prepared: bool = False
    load: Load | None = None
    bits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Create a replica of a generation, on none of the nodes `off`, and on one of `taken` only if no other has room.

    standby: it is to stand by, nothing more.
    """

    number: int
    generation: int
    off: frozenset[str]
    taken: frozenset[str]
    standby: bool = False


@dataclass(frozen=True, slots=True)
class Go:
    """Have a replica that stands by start."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End a replica: its services drain for a moment, then its processes end."""

    number: int


Action = Start | Go | Stop


@dataclass(slots=True)
class Failures:
    """Starts that failed in a row, and when the next may begin."""

    count: int = 0
    reason: str = ""
    again_at: float = 0.0

    def add(self, reason: str, now: float) -> None:
        """One more."""
        self.count += 1
        self.reason = reason
        self.again_at = now + min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(30, self.count - 1))


@dataclass(slots=True)
class Fleet:
    """All replicas, and what is wanted of them. Call `decide` again and again, and tell what happens in between.

    Replicas of another generation than the wanted one, and those `asked` to go, are exchanged one at a time: a new
    one first, where there is a place for it, then the old one drains. A generation whose starts fail makes way for
    the one before it. While all that are wanted serve, others stand by where there is room, and take the place of those
    that are lost. Two replicas share a node only while no other has room: what is lost with a node is to be little.
    """

    scaling: Scaling
    generation: int = 0
    newest: int = 0
    specs: dict[int, ReplicaSpec] = field(default_factory=dict)
    wanted: int = 0
    next_number: int = 1
    off: set[str] = field(default_factory=set)
    records: dict[int, Record] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=NOTES_KEPT))
    closing: float | None = None
    room: frozenset[str] = frozenset()
    """Nodes on which one more replica would find room, as last seen."""
    _spread_at: float = 0.0
    _standby_at: float = 0.0
    _lost_at: float = -math.inf
    _doubted: dict[str, float] = field(default_factory=dict)
    """Nodes that have lost a replica, and when."""
    _scaler: Autoscaler = field(init=False)

    def __post_init__(self) -> None:
        """The scaler follows `scaling`."""
        self._scaler = Autoscaler(self.scaling)

    def apply(self, spec: ReplicaSpec, scaling: Scaling) -> None:
        """Want this. Another spec than before is a new generation."""
        self.rescale(scaling)
        if self.specs.get(self.generation) != spec:
            self.generation = self.newest = self.newest + 1
            self.specs[self.generation] = spec
        self.failures = Failures()

    def rescale(self, scaling: Scaling) -> None:
        """Want so many."""
        self.scaling = scaling
        self._scaler = Autoscaler(scaling)
        self.wanted = min(scaling.most, max(scaling.least, self.wanted))

    def release(self, number: int) -> None:
        """Have a replica go, and another take its place. KeyError where there is none."""
        self.records[number].asked = True

    def clear(self, node: str) -> None:
        """Have all replicas of a node go, and none come there."""
        self.off.add(node)
        for record in self.records.values():
            record.asked |= record.node == node

    def close(self, seconds: float) -> None:
        """Have all replicas go; requests under way get so many seconds at most."""
        self.closing = seconds

    def placed(self, number: int, node: str) -> None:
        """A replica has its place."""
        record = self.records[number]
        if record.state is State.STARTING and any(each.node == node for each in self._fresh()):
            self._stay()
        record.node = node
        record.asked |= node in self.off

    def prepared(self, number: int) -> None:
        """A replica stands by."""
        self.records[number].prepared = True

    def ready(self, number: int, address: str, bits: tuple[str, ...], now: float) -> None:
        """A replica serves."""
        record = self.records[number]
        record.state, record.since, record.address, record.bits = State.READY, now, address, bits
        self.failures = Failures()
        others = {each.bits for each in self._in(State.READY) if each.generation != record.generation}
        if others - {bits}:
            self.notes.append(
                f"replica {number} decides other bits than those before it: requests under way stay where they are, "
                f"for {self.specs[record.generation].finish_seconds:g} s at most"
            )

    def ended(self, number: int, reason: str, now: float) -> None:
        """A replica is gone: as it was told to, or by itself for this `reason`."""
        record = self.records.pop(number)
        if record.state is State.STARTING and reason and record.generation == self.generation:
            self.failures.add(reason, now)
            self._stay()
        if record.state is State.STANDBY:
            self._standby_at = now + (DOUBT_SECONDS if record.prepared else STANDBY_DELAY)
        if reason and record.state is not State.STOPPING:
            self._doubted[record.node] = now
            self._lost_at = now if record.state is State.READY else self._lost_at
            self.notes.append(f"replica {number} was lost: {reason}")
        earlier = [each for each in self.specs if each < self.generation]
        if self.failures.count >= MOST_FAILURES and earlier and not self._fresh(State.READY):
            self.notes.append(f"the upgrade is taken back: {self.failures.reason}")
            del self.specs[self.generation]
            self.generation, self.failures = earlier[-1], Failures()

    def loaded(self, number: int, load: Load) -> None:
        """A replica's load of the moment."""
        self.records[number].load = load

    def decide(self, now: float) -> list[Action]:
        """What is to be done now. Drains begin in the records: their owner publishes what `members` says."""
        if self.closing is not None:
            actions: list[Action] = [self._stop(each, now) for each in self._in(State.STANDBY, State.STARTING)]
            for record in self._in(State.READY):
                record.state, record.since = State.DRAINING, now
            return [*actions, *self._finish(now)]
        if not self.specs:
            return []
        loads = [each.load for each in self._in(State.READY) if each.load is not None]
        self.wanted = self._scaler.wanted(now, self.wanted, loads)
        actions = [self._stop(each, now) for each in self._old(State.STANDBY, State.STARTING)]
        excess = len(self._fresh()) - self.wanted
        for record in sorted(self._fresh(State.STARTING), key=lambda each: bool(each.node))[: max(0, excess)]:
            actions.append(self._stop(record, now))
        actions += self._spread(now)
        actions += self._starts(now)
        actions += self._standbys(now)
        if not self._in(State.DRAINING, State.STOPPING):
            self._drain_one(now)
        actions += self._finish(now)
        self._forget(now)
        return actions

    @property
    def settled(self) -> bool:
        """Whether all that are wanted serve, and nothing else is there but what stands by."""
        there = len(self.records) - len(self._in(State.STANDBY))
        return len(self._fresh(State.READY)) == there == self.wanted

    def _starts(self, now: float) -> list[Action]:
        lacking = self.wanted - len(self._fresh())
        if old := self._old(State.READY):
            lacking = min(lacking, self.wanted + 1 - len(old) - len(self._fresh()))
        if now < self.failures.again_at:
            lacking = 0
        if self.failures.count:
            lacking = min(lacking, 1 - len(self._fresh(State.STARTING)))
        actions: list[Action] = []
        taken = frozenset(each.node for each in self._in(State.STARTING, State.READY) if each.node) - self.off
        for _ in range(lacking):
            if (record := self._standing(taken)) is not None:
                record.state, record.since, record.warm = State.STARTING, now, True
                actions.append(Go(record.number))
            else:
                actions.append(self._start(now, taken))
        return actions

    def _start(self, now: float, taken: frozenset[str], state: State = State.STARTING) -> Start:
        number, self.next_number = self.next_number, self.next_number + 1
        self.records[number] = Record(number, self.generation, now, state)
        return Start(number, self.generation, frozenset(self.off), taken, state is State.STANDBY)

    def _standing(self, taken: frozenset[str]) -> Record | None:
        """The one to start of those that stand by; where a replica moves, only one on a node without any."""
        moving = any(each.moves for each in self._in(State.READY))
        found = [each for each in self._fresh(State.STANDBY) if each.node and not (moving and each.node in taken)]
        return min(
            found, key=lambda each: (each.node in self._doubted, not each.prepared, each.node in taken), default=None
        )

    def _standbys(self, now: float) -> list[Action]:
        """Have as many stand by as are wanted, one after the other, if it can be on nodes without any replica."""
        standing, ready = self._fresh(State.STANDBY), self._in(State.READY)
        for record in standing:
            if len(standing) > self.scaling.standby or (not record.node and now > record.since + STANDBY_PLACE_SECONDS):
                return [self._stop(record, now)]
        preparing = any(not each.prepared for each in standing)
        resuming = now < self._lost_at + RESUME_SECONDS and any(each.load and each.load.queued for each in ready)
        if len(standing) >= self.scaling.standby or preparing or resuming:
            return []
        if not self.settled or now < self._standby_at:
            return []
        room, apart = self.room - self.off, {each.node for each in standing}
        empty = apart | {each.node for each in ready}
        taken = frozenset((empty if room - empty else apart) - self.off)
        return [self._start(now, taken, State.STANDBY)] if room else []

    def _spread(self, now: float) -> list[Action]:
        """Have replicas that share a node go to nodes without any.

        One that has only just begun to start does at once, those that serve one after the other, and not right after a
        loss: requests that move are computed anew, as those of the lost one are.
        """
        taken = Counter(each.node for each in self._in(State.STARTING, State.READY))
        better = self.room | {each.node for each in self._fresh(State.STANDBY) if each.node}
        if not any(not taken[node] for node in better - self.off):
            return []
        shared = [each for each in self._fresh() if each.node and taken[each.node] > 1]
        early = [each for each in shared if each.state is State.STARTING and not each.warm]
        early = [each for each in early if now < each.since + EARLY_SECONDS]
        if early:
            return [self._stop(early[-1], now)]
        if shared and self.settled and now >= max(self._spread_at, self._lost_at + RESUME_SECONDS):
            record = min(shared, key=lambda each: each.load.requests if each.load else 0)
            record.asked = record.moves = True
            self._spread_at = now + SPREAD_SECONDS
        return []

    def _stay(self) -> None:
        """What is about to move stays: there is no better place for it."""
        for record in self.records.values():
            if record.moves and record.state is State.READY:
                record.asked = record.moves = False

    def _drain_one(self, now: float) -> None:
        """Begin to drain the replica that is to go next, if one is."""
        old, fresh = self._old(State.READY), self._fresh(State.READY)
        stuck = any(not each.node and now > each.since + PLACE_SECONDS for each in self._fresh(State.STARTING))
        if stuck:
            self._stay()
            old = self._old(State.READY)
        if old and (len(old) + len(fresh) > self.wanted or stuck):
            leaving = old
        elif len(fresh) > self.wanted:
            leaving = fresh
        else:
            return
        record = min(leaving, key=lambda each: (each.load.requests if each.load else 0, -each.number))
        record.state, record.since = State.DRAINING, now

    def _finish(self, now: float) -> list[Action]:
        """Stop those that are drained, or have had their time."""
        actions: list[Action] = []
        for record in self._in(State.DRAINING):
            spent = now - record.since
            empty = record.load is not None and not record.load.requests and spent >= SETTLE_SECONDS
            if empty or spent >= self._limit(record.generation):
                actions.append(self._stop(record, now))
        return actions

    def _limit(self, generation: int) -> float:
        """For how many seconds a replica of a generation may drain."""
        spec = self.specs.get(generation)
        most = 0.0 if spec is None else spec.finish_seconds
        return most if self.closing is None else min(most, self.closing)

    def _stop(self, record: Record, now: float) -> Stop:
        record.state, record.since = State.STOPPING, now
        return Stop(record.number)

    def _forget(self, now: float) -> None:
        """Drop doubts of the past, and specs that no replica has, and that no upgrade can be taken back to."""
        self._doubted = {node: since for node, since in self._doubted.items() if now < since + DOUBT_SECONDS}
        if self._fresh(State.READY) and all(each.generation == self.generation for each in self.records.values()):
            self.specs = {self.generation: self.specs[self.generation]}

    def _in(self, *states: State) -> list[Record]:
        return [each for each in self.records.values() if each.state in states]

    def _fresh(self, *states: State) -> list[Record]:
        """Starting or serving, and to stay."""
        return self._staying(self._in(*(states or (State.STARTING, State.READY))))

    def _old(self, *states: State) -> list[Record]:
        """To be exchanged."""
        found = self._in(*states)
        staying = {each.number for each in self._staying(found)}
        return [each for each in found if each.number not in staying]

    def _staying(self, records: Iterable[Record]) -> list[Record]:
        return [each for each in records if each.generation == self.generation and not each.asked]
