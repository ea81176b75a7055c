"""Loads that are alike."""

from __future__ import annotations

from verify_service.core.load_size import load_size


def test_classes_grow_with_the_load_and_begin_where_the_docstring_says() -> None:
    begins = [number for number in range(1, 100) if load_size(number) > load_size(number - 1)]
    assert begins == [1, 2, 3, 6, 11, 22, 43, 86]
    assert [load_size(number) for number in begins] == list(range(1, 9))
    assert load_size(0) == 0


def test_a_load_of_a_power_of_two_that_misses_a_few_requests_is_the_same_one() -> None:
    for exponent in range(2, 13):
        load = 1 << exponent
        assert load_size(load - load // 4) == load_size(load) == load_size(load + load // 4)
