"""Replicas that stand by, as the controller decides, with hosts in virtual time."""

from __future__ import annotations

import pytest

from launcher.cluster.autoscaler import Scaling
from launcher.cluster.fleet import DOUBT_SECONDS, RESUME_SECONDS, State
from support.cluster_hosts import NEW, hosts, nodes_of, standing


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
