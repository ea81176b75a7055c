from benchmarks.drafter_faults.swap import WINDOW_STEPS, Sample, figures

ROWS = 10
"""Requests of each step."""


def samples_of(accepted):
    """Counters after each step, of which each accepts as told."""
    samples, committed, total = [Sample(0, 0, 0)], 0, 0
    for step, count in enumerate(accepted, start=1):
        committed, total = committed + ROWS + count, total + count
        samples.append(Sample(step, committed, total))
    return samples


def test_steps_are_counted_until_the_moving_acceptance_is_the_new_drafters():
    found = figures(samples_of([5] * 100 + [15] * 100), asked=90, moved=100)
    assert (found["accepted_before"], found["accepted_after"]) == (0.5, 1.5)
    assert found["steps_until_all_moved"] == 10
    assert found["steps_until_there"] == 10 + WINDOW_STEPS
    assert found["steps_behind_the_move"] == WINDOW_STEPS
    assert dict(found["moving"])[0] == 0.5


def test_steps_that_were_not_seen_one_by_one_do_not_matter():
    samples = samples_of([5] * 100 + [15] * 100)[::2]
    assert figures(samples, asked=90, moved=100)["steps_until_there"] == 10 + WINDOW_STEPS
