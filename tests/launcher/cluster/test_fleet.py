"""The controller's decisions, carried out by hosts in virtual time."""

from __future__ import annotations

import random

import pytest

from launcher.cluster.autoscaler import Load, Scaling
from launcher.cluster.fleet import (
    DOUBT_SECONDS,
    LONGEST_DELAY,
    MOST_FAILURES,
    RESUME_SECONDS,
    Fleet,
    Go,
    Start,
    State,
    Stop,
)
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


def test_replicas_start_together():
    found = hosts(3, {"a": 2, "b": 2})
    assert len(found.ready()) == 3 and found.now < 5


def test_a_lost_node_is_replaced_at_once_on_another():
    found = hosts(3, {"a": 1, "b": 1, "c": 2})
    found.kill_node("a")
    begun = found.now
    found.settle()
    assert found.now - begun < found.start + 1 and {each.node for each in found.ready()} <= {"b", "c"}


def nodes_of(found):
    return sorted(each.node for each in found.ready())


def test_a_node_that_joins_gets_one_of_two_that_share_another_and_never_fewer_serve():
    found = hosts(2, {"a": 2})
    assert nodes_of(found) == ["a", "a"]
    found.streams = {each.number: 3 for each in found.ready()}
    found.places["b"] = 2
    found.least_ready.clear()
    found.run(60)
    assert nodes_of(found) == ["a", "b"]
    assert min(found.least_ready) == 2
    assert found.fleet.next_number == 4, "one was started"
    assert sum(found.streams.values()) == 6


def test_one_that_has_just_begun_beside_another_begins_anew_on_a_node_that_joins():
    found = hosts(2, {"a": 2, "b": 2})
    found.kill_node(found.ready()[0].node)
    lost_at, found.streams = found.now, {}
    found.run(1)
    found.places["c"] = 2
    found.settle()
    assert len(set(nodes_of(found))) == 2
    assert found.now - lost_at < 3.0 + 2.5, "of which the start takes 3"


def test_a_node_with_room_that_gets_no_replica_costs_none():
    found = hosts(2, {"a": 2})
    found.places["b"] = 1
    broken, found.broken = found.broken, {"/old"}
    found.least_ready.clear()
    found.run(20)
    assert nodes_of(found) == ["a", "a"]
    assert min(found.least_ready) == 2
    found.broken = broken
    found.run(60)
    assert nodes_of(found) == ["a", "b"]


def standing(found):
    return sorted(each.node for each in found.fleet.records.values() if each.state is State.STANDBY and each.prepared)


def test_one_that_stands_by_takes_the_place_of_a_lost_one_and_another_stands_by():
    found = hosts(2, {"a": 2, "b": 2, "c": 2}, standby=1)
    found.run(10, until=lambda: standing(found) == ["c"])
    assert standing(found) == ["c"]
    lost_at, begun = found.now, found.fleet.next_number
    found.kill_node("a")
    found.settle()
    assert found.now - lost_at < found.warm + 1 and nodes_of(found) == ["b", "c"]
    found.run(20)
    assert len(standing(found)) == 1 and found.fleet.next_number == begun + 1


@pytest.mark.parametrize("waited", [3.0, 600.0])
def test_nothing_is_prepared_while_requests_of_a_lost_replica_wait_elsewhere(waited):
    found = hosts(2, {"a": 2, "b": 2, "c": 2}, standby=1)
    found.run(10, until=lambda: standing(found))
    lost_at, begun, found.queued = found.now, found.fleet.next_number, 7
    found.kill_node("a")
    found.settle()
    found.run(lost_at + min(waited, RESUME_SECONDS) - found.now)
    assert found.fleet.next_number == begun
    found.queued = 7 if waited > RESUME_SECONDS else 0
    found.run(1.0)
    assert found.fleet.next_number == begun + 1


def test_nothing_is_prepared_at_once_where_a_lost_one_that_stood_by_may_be_the_first_of_its_node():
    found = hosts(2, {"a": 2, "b": 2, "c": 2}, standby=1)
    found.run(10, until=lambda: standing(found))
    begun = found.fleet.next_number
    found.lose(next(each.number for each in found.fleet.records.values() if each.state is State.STANDBY))
    found.run(DOUBT_SECONDS)
    assert found.fleet.next_number == begun
    found.run(1.0)
    assert found.fleet.next_number == begun + 1


def test_those_that_stand_by_keep_apart_so_that_one_outlives_any_node():
    found = hosts(2, {"a": 3, "b": 3}, standby=2)
    found.run(20)
    assert standing(found) == ["a", "b"]
    lost_at = found.now
    found.kill_node("a")
    found.settle()
    assert found.now - lost_at < found.warm + 1


def test_none_stands_by_where_there_is_no_room_and_a_replica_never_waits_for_one_that_does():
    found = hosts(2, {"a": 2, "b": 1}, standby=3)
    found.run(30)
    assert len(standing(found)) == 1
    found.fleet.rescale(Scaling(3, 3, standby=3))
    began = found.now
    found.settle()
    assert found.now - began < found.warm + 1 and not standing(found)


def test_a_replica_moves_to_an_empty_node_into_the_one_that_stands_by_there():
    found = hosts(2, {"a": 3}, standby=1)
    found.run(10)
    found.places["b"] = 1
    found.kill_node("a")
    found.places["a"] = 2
    found.settle()
    found.run(60)
    assert nodes_of(found) == ["a", "b"]


def test_an_upgrade_ends_those_of_the_old_kind_that_stand_by():
    found = hosts(2, {"a": 3, "b": 3}, standby=1)
    found.run(10)
    found.fleet.apply(NEW, found.fleet.scaling)
    found.settle()
    found.run(20)
    assert {each.generation for each in found.fleet.records.values()} == {2} and len(standing(found)) == 1


def test_those_that_cannot_stand_by_are_tried_again_ever_so_often():
    found = hosts(1, {"a": 3}, standby=1)
    found.run(1)
    began = found.fleet.next_number
    for _ in range(60):
        for record in list(found.fleet.records.values()):
            if record.state is State.STANDBY:
                found.lose(record.number, "no such library")
        found.run(1)
    assert 4 <= found.fleet.next_number - began <= 7


def test_a_replica_that_drains_is_replaced_first_then_left_by_its_streams_and_ends_in_seconds():
    found = hosts(2, {"a": 3})
    found.streams = {1: 5}
    found.fleet.release(1)
    found.least_ready.clear()
    begun = found.now
    found.settle()
    assert found.now - begun < found.start + 4 and min(found.least_ready) == 2
    assert 1 not in found.fleet.records and sum(found.streams.values()) == 5


def test_without_a_free_place_the_old_one_makes_room():
    found = hosts(2, {"a": 1, "b": 1})
    found.fleet.release(1)
    found.least_ready.clear()
    found.settle()
    assert min(found.least_ready) == 1 and 1 not in found.fleet.records


def test_a_cleared_node_loses_its_replicas_and_gets_none():
    found = hosts(2, {"a": 2, "b": 2})
    assert {each.node for each in found.ready()} == {"a", "b"}
    found.fleet.clear("a")
    found.settle()
    assert {each.node for each in found.ready()} == {"b"}
    found.lose(found.ready()[0].number)
    found.settle()
    assert {each.node for each in found.ready()} == {"b"}


def test_an_upgrade_exchanges_one_after_the_other_and_never_has_fewer():
    found = hosts(3, {"a": 4})
    found.least_ready.clear()
    found.fleet.apply(NEW, found.fleet.scaling)
    most = 0
    while not found.fleet.settled:
        found.tick()
        most = max(most, len(found.fleet.records))
    assert {each.bits for each in found.ready()} == {("/new",)} and most <= 4 + 1
    assert min(found.least_ready) == 3
    assert list(found.fleet.specs) == [2]
    assert "other bits" in found.fleet.notes[0]


def test_streams_that_cannot_move_end_where_they_are_up_to_the_limit():
    found = hosts(1, {"a": 2})
    found.streams = {1: 1}
    found.fleet.apply(NEW, found.fleet.scaling)
    found.run(10)
    assert found.fleet.records[1].state is State.DRAINING and len(found.ready()) == 1
    begun = found.fleet.records[1].since
    found.run(60, until=lambda: 1 not in found.fleet.records)
    assert OLD.finish_seconds <= found.now - begun <= OLD.finish_seconds + 2


def test_an_upgrade_that_does_not_start_is_taken_back_and_costs_no_replica():
    found = hosts(2, {"a": 3}, broken=["/new"])
    found.least_ready.clear()
    found.fleet.apply(NEW, found.fleet.scaling)
    found.run(40)
    assert found.fleet.settled and min(found.least_ready) == 2
    assert {each.bits for each in found.ready()} == {("/old",)}
    assert found.fleet.notes[-1] == "the upgrade is taken back: no such file"
    assert found.fleet.next_number == 3 + MOST_FAILURES
    found.broken.clear()
    found.fleet.apply(NEW, found.fleet.scaling)
    found.settle()
    assert {each.bits for each in found.ready()} == {("/new",)}


def test_a_first_generation_that_does_not_start_is_tried_again_ever_more_rarely():
    found = Hosts({"a": 4}, Scaling(2, 2), start=0.0, broken=["/old"])
    found.fleet.apply(OLD, found.fleet.scaling)
    found.run(120)
    assert found.fleet.failures.reason == "no such file"
    assert 8 < found.fleet.failures.count < 7 + 120 / LONGEST_DELAY
    found.broken.clear()
    found.settle()


def test_fewer_are_reached_by_draining_the_least_loaded_one_by_one():
    found = hosts(3, {"a": 3})
    found.streams = {1: 4, 2: 1, 3: 2}
    found.fleet.rescale(Scaling(1, 1))
    found.settle()
    assert [each.number for each in found.ready()] == [1] and found.streams[1] == 7


def test_closing_ends_all_and_waits_for_streams_no_longer_than_told():
    found = hosts(2, {"a": 2})
    found.streams = {2: 1}
    found.fleet.close(5.0)
    begun = found.now
    found.run(60, until=lambda: not found.fleet.records)
    assert not found.fleet.records and 5 <= found.now - begun < 7


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_wanted_replicas_come_back(seed):
    draw = random.Random(seed)
    found = hosts(3, {"a": 2, "b": 2, "c": 2}, standby=seed % 3)
    for _ in range(60):
        event = draw.randrange(6)
        numbers = list(found.fleet.records)
        if event == 0 and len(found.places) > 1:
            found.kill_node(draw.choice(list(found.places)))
        elif event == 1:
            found.places[f"n{found.now}"] = 2
        elif event == 2 and numbers:
            found.lose(draw.choice(numbers))
        elif event == 3 and numbers:
            found.fleet.release(draw.choice(numbers))
        elif event == 4:
            found.fleet.apply(draw.choice((OLD, NEW)), Scaling(*[draw.randint(1, 4)] * 2, standby=draw.randrange(3)))
        else:
            found.streams = {number: draw.randrange(3) for number in numbers}
        found.run(draw.uniform(0.0, 8.0))
    found.places["large"] = 8
    found.streams.clear()
    found.settle()
    found.run(60)
    assert len(standing(found)) == found.fleet.scaling.standby
    model = found.fleet.specs[found.fleet.generation].model
    assert {each.bits for each in found.ready()} == {(model,)} and len(found.ready()) == found.fleet.wanted
