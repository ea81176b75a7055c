"""Hosts of a cluster in virtual time, which carry out what the controller decides."""

from __future__ import annotations

from launcher.cluster.autoscaler import Load, Scaling
from launcher.cluster.fleet import Fleet, Go, Start, State, Stop
from launcher.cluster.replica_spec import ReplicaSpec

OLD, NEW = ReplicaSpec("/old", finish_seconds=20), ReplicaSpec("/new", finish_seconds=20)
TICK = 0.25


class Hosts:
    """Nodes with places for replicas, which take `start` seconds to serve or to stand by, `warm` from then on to serve,
    and `stop` to end.

    Streams of a replica that drains move to any other that serves with the same bits; else they last.
    """

    def __init__(self, places, scaling, *, start=3.0, warm=0.5, stop=0.5, broken=()):
        self.fleet = Fleet(scaling)
        self.places = dict(places)
        self.start, self.warm, self.stop, self.broken = start, warm, stop, set(broken)
        self.now = 0.0
        self.streams, self.queued = {}, 0
        self.begun, self.ending, self.off, self.taken = {}, {}, {}, {}
        self.least_ready = []

    def kill_node(self, node):
        del self.places[node]
        for record in [each for each in self.fleet.records.values() if each.node == node]:
            self.lose(record.number)

    def lose(self, number, reason="killed"):
        self.begun.pop(number, None)
        self.ending.pop(number, None)
        self.move(number)
        self.fleet.ended(number, reason, self.now)

    def move(self, number):
        """To others that can go on with them; whether all are gone."""
        record = self.fleet.records[number]
        others = [each.number for each in self.ready() if each.bits == record.bits and each.number != number]
        if others and self.streams.get(number):
            self.streams[others[0]] = self.streams.get(others[0], 0) + self.streams.pop(number)

    def ready(self):
        return [each for each in self.fleet.records.values() if each.state is State.READY]

    def tick(self):
        fleet = self.fleet
        self.begin()
        for number, at in list(self.ending.items()):
            if self.now >= at:
                del self.ending[number]
                self.fleet.ended(number, "", self.now)
        for record in fleet.records.values():
            if record.state is State.DRAINING:
                self.move(record.number)
            running = self.streams.get(record.number, 0)
            fleet.loaded(record.number, Load(running, self.queued, capacity=64, pages_total=100, pages_idle=100))
        taken = [each.node for each in fleet.records.values()]
        fleet.room = frozenset(node for node, size in self.places.items() if taken.count(node) < size)
        for action in fleet.decide(self.now):
            if isinstance(action, Start):
                self.begun[action.number], self.off[action.number] = self.now, action.off
                self.taken[action.number] = action.taken
            elif isinstance(action, Go):
                self.begun[action.number] = self.now
            elif isinstance(action, Stop):
                self.begun.pop(action.number, None)
                self.ending[action.number] = self.now + self.stop
        self.least_ready.append(len(self.ready()))
        self.now += TICK

    def begin(self):
        """Places are found, and starts come to their end."""
        fleet = self.fleet
        for number, since in list(self.begun.items()):
            record = fleet.records[number]
            taken = [each.node for each in fleet.records.values()]
            free = [node for node, size in self.places.items()
                    if taken.count(node) < size and node not in self.off[number]]  # fmt: skip
            free.sort(key=lambda node: node in self.taken[number])
            if not record.node and free:
                fleet.placed(number, free[0])
                self.begun[number] = self.now
            elif record.node and self.now >= since + (self.warm if record.warm else self.start):
                del self.begun[number]
                if record.state is State.STANDBY:
                    fleet.prepared(number)
                    continue
                model = fleet.specs[record.generation].model
                if model in self.broken:
                    fleet.ended(number, "no such file", self.now)
                else:
                    fleet.ready(number, f"host:{number}", (model,), self.now)

    def run(self, seconds, until=lambda: False):
        end = self.now + seconds
        while self.now < end and not until():
            self.tick()

    def settle(self, seconds=120.0):
        self.run(seconds, until=lambda: bool(self.fleet.records) and self.fleet.settled)
        assert self.fleet.settled, self.fleet


def hosts(wanted, places, standby=0, **more):
    found = Hosts(places, Scaling(wanted, wanted, standby=standby), **more)
    found.fleet.apply(OLD, found.fleet.scaling)
    found.settle()
    return found


def nodes_of(found):
    return sorted(each.node for each in found.ready())


def standing(found):
    return sorted(each.node for each in found.fleet.records.values() if each.state is State.STANDBY and each.prepared)
