"""Policies in virtual time where prompts share nothing: routing by prefix is least-loaded at its worst."""

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
