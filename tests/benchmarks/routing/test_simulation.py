"""Policies in virtual time where prompts share nothing, or all: routing by prefix is least-loaded at its worst."""

from __future__ import annotations

import pytest

from benchmarks.routing.machine import MachineCosts
from benchmarks.routing.simulation import policy_of, simulate, simulate_loop
from benchmarks.routing.workload import Workload

APART = Workload(10.0, 150, 0, 600, 0, 24)
MACHINES = 3
NOISE = 1.02
"""Of few requests: a policy of no other choices than chance has is off by more."""


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_clients_that_wait_get_first_tokens_no_later_by_prefix(clients):
    found = {
        name: simulate_loop(APART.requests(0), policy_of(name, 0), MachineCosts(), MACHINES, clients * MACHINES)
        for name in ("prefix", "least-loaded", "random")
    }
    assert {each.requests for each in found.values()} == {APART.count - APART.count // 3}
    assert found["prefix"].ttft_mean_ms <= NOISE * found["least-loaded"].ttft_mean_ms < found["random"].ttft_mean_ms


def test_requests_that_come_whatever_becomes_of_others_get_them_no_later_either():
    prefix, least = (
        simulate(APART.requests(0), policy_of(name, 0), MachineCosts(), MACHINES) for name in ("prefix", "least-loaded")
    )
    assert prefix.ttft_mean_ms <= NOISE * least.ttft_mean_ms


def test_a_prefix_of_all_requests_does_not_crowd_them_into_one_full_batch():
    crowd = Workload(8.0, 150, 1, 3000, 100, 400)
    prefix, least = (
        simulate(crowd.requests(0), policy_of(name, 0), MachineCosts(lines=8), 2) for name in ("prefix", "least-loaded")
    )
    assert prefix.ttft_mean_ms <= 1.25 * least.ttft_mean_ms  # 2.9 if lines did not count
