"""The controller's decisions, carried out by hosts in virtual time."""

from __future__ import annotations

import random

import pytest

from launcher.cluster.autoscaler import Scaling
from launcher.cluster.fleet import LONGEST_DELAY, MOST_FAILURES, RESUME_SECONDS, State
from support.cluster_hosts import NEW, OLD, Hosts, hosts, nodes_of, standing


def test_replicas_start_together():
    found = hosts(3, {"a": 2, "b": 2})
    assert len(found.ready()) == 3 and found.now < 5


def test_a_lost_node_is_replaced_at_once_on_another():
    found = hosts(3, {"a": 1, "b": 1, "c": 2})
    found.kill_node("a")
    begun = found.now
    found.settle()
    assert found.now - begun < found.start + 1 and {each.node for each in found.ready()} <= {"b", "c"}


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


def test_right_after_a_loss_none_moves():
    found = hosts(2, {"a": 1, "b": 2})
    found.kill_node("a")
    found.settle()
    lost_at, begun = found.now - found.start, found.fleet.next_number
    found.places["c"] = 1
    found.run(lost_at + RESUME_SECONDS - 1 - found.now)
    assert found.fleet.next_number == begun and nodes_of(found) == ["b", "b"]
    found.run(30)
    assert nodes_of(found) == ["b", "c"]


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
