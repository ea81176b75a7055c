import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.drafter_faults.holdings import FLAT_DEVICE_BYTES, Holdings, Sample, held
from benchmarks.lib.process_samples import FLAT_BYTES, FLAT_DESCRIPTORS

START = Holdings(1 << 30, 40, 2, 0)
KILLS = 20


def curve(*resident):
    """What is held before, in between and after, of these bytes beyond the start."""
    held_bytes = [START.resident + round(each) for each in resident]
    during = [Sample(10.0 + 2 * at, each, 41) for at, each in enumerate(held_bytes)]
    return held(START, during, replace(START, resident=held_bytes[-1]), 1)


def test_memory_touched_for_the_first_time_early_on_is_no_leak():
    found = curve(*(2 * FLAT_BYTES * (1 - 0.6**at) for at in range(KILLS)))
    assert found["grown"] == []
    assert found["resident_grown_mib"]["first_half"] > FLAT_BYTES >> 20 > found["resident_grown_mib"]["second"]


def test_memory_that_every_kill_takes_more_of_is():
    found = curve(*(3 * FLAT_BYTES * at / KILLS for at in range(KILLS)))
    assert found["grown"] == ["resident"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_few_samples_are_held_against_the_start_or_the_first(number):
    during = [Sample(1.0 + at, START.resident, 40) for at in range(number)]
    after = replace(START, resident=START.resident + FLAT_BYTES + 1)
    assert held(START, during, after, 1)["grown"] == ["resident"]


@pytest.mark.parametrize(
    ("name", "more"), [("descriptors", FLAT_DESCRIPTORS), ("rings", 0), ("device", 2 * FLAT_DEVICE_BYTES)]
)
def test_what_else_is_held_counts_from_the_start(name, more):
    fine = replace(START, **{name: getattr(START, name) + more})
    grown = replace(START, **{name: getattr(START, name) + more + 1})
    assert [held(START, (), after, 2)["grown"] for after in (fine, grown)] == [[], [name]]


def test_a_process_is_looked_at_as_it_is():
    block = bytearray(os.urandom(1)) * (64 << 20)
    rings = Holdings.of(os.getpid()).rings  # that other tests of this process have left
    with Path(os.devnull).open():
        now, whole = Sample.of(os.getpid()), Holdings.of(os.getpid())
        assert whole.resident > len(block)
    then = Sample.of(os.getpid())
    assert (now.descriptors - then.descriptors, whole.rings - rings) == (1, 0)
    assert then.at > now.at > 0
