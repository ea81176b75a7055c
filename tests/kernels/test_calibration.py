"""Estimates follow what was seen, from the coarse to the fine, and forget."""

from __future__ import annotations

from random import Random

import pytest

from slipstream_kernels.calibration import LEAST, MOST, Calibration, prob_bin


def test_without_experience_the_prior_is_believed() -> None:
    assert Calibration().estimate(["coarse", "fine"], 0.3) == pytest.approx(0.3)
    assert Calibration().estimate([], 1.0) == MOST
    assert Calibration().estimate([], 0.0) == LEAST


@pytest.mark.parametrize(("claimed", "true"), [(0.99, 0.3), (0.1, 0.8), (0.5, 0.5)])
def test_estimates_converge_to_the_share_of_hits(claimed, true) -> None:
    calibration, draw = Calibration(memory=2000), Random(7)
    cells = [("a", prob_bin(claimed)), ("a", prob_bin(claimed), 1)]
    for _ in range(6000):
        calibration.observe(cells, draw.random() < true)
    assert calibration.estimate(cells, claimed) == pytest.approx(true, abs=0.04)
    assert calibration.estimate(cells[:1], claimed) == pytest.approx(true, abs=0.04)
    assert calibration.estimate([("b", 0)], claimed) == pytest.approx(claimed)


def test_a_fine_cell_without_experience_believes_the_coarse_one() -> None:
    calibration = Calibration()
    for _ in range(500):
        calibration.observe(["coarse", "fine"], False)
    assert calibration.estimate(["coarse", "another"], 0.9) < 0.05


def test_old_experience_fades() -> None:
    calibration = Calibration(memory=100)
    for hit in [True] * 1000 + [False] * 300:
        calibration.observe(["a"], hit)
    assert calibration.estimate(["a"], 0.5) < 0.15


def test_buckets_are_in_order() -> None:
    buckets = [prob_bin(i / 1000) for i in range(1001)]
    assert buckets == sorted(buckets)
    assert set(buckets) == set(range(14))
