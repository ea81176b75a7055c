from collections import Counter

import numpy as np
import pytest

from benchmarks.distribution.exact_law import Law, chi_square, conditionals, joint


def test_probabilities_by_hand():
    law = Law(temperature=0.5, top_p=0.9, presence_penalty=1.0)
    logits = np.array([1.0, 1.0, 2.0, -9.0])
    weights = np.exp(np.array([2.0, 2.0, 2.0]))  # token 2 was output before, its logit is 1 now; token 3 is cut
    assert law.probabilities(logits, [2]) == pytest.approx([*(weights / weights.sum()), 0.0])


def test_top_p_keeps_the_lowest_ids_of_equals():
    law = Law(temperature=1.0, top_p=0.5, presence_penalty=0.0)
    assert law.probabilities(np.zeros(4), []) == pytest.approx([0.5, 0.5, 0.0, 0.0])


def test_joint_sums_over_what_came_before():
    # The next token repeats the last with probability 3/4.
    def logits(sequences):
        return np.log(np.array([[0.75, 0.25] if sequence[-1] == 0 else [0.25, 0.75] for sequence in sequences]))

    table = conditionals(logits, (0,), Law(1.0, 1.0, 0.0), 3)
    assert joint(table, 0, 1) == pytest.approx({(0,): 0.75, (1,): 0.25})
    assert joint(table, 1, 2)[0, 0] == pytest.approx((0.75 * 0.75 + 0.25 * 0.25) * 0.75)
    assert sum(joint(table, 0, 3).values()) == pytest.approx(1.0)


def test_chi_square_accepts_the_law_and_rejects_another():
    expected = {(token,): 0.25 for token in range(4)}
    draws = np.random.default_rng(0).integers(0, 4, 4000)
    good = chi_square(Counter((int(token),) for token in draws), expected)
    assert good.degrees == 3
    assert good.p_value > 0.01
    bad = chi_square(Counter({(0,): 1150, (1,): 950, (2,): 950, (3,): 950}), expected)
    assert bad.p_value < 1e-4
    assert chi_square(Counter({(0,): 10, (9,): 1}), expected).impossible == 1


def test_rare_cells_are_summed():
    expected = {(0,): 0.97, (1,): 0.01, (2,): 0.01, (3,): 0.01}
    result = chi_square(Counter({(0,): 291, (1,): 3, (2,): 3, (3,): 3}), expected)
    assert (result.degrees, result.statistic) == (1, pytest.approx(0.0))
