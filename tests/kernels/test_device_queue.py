"""Where passes and rounds of two processes find one another's words and rows."""

from __future__ import annotations

import pytest
import torch

from slipstream_kernels.device_queue import MOST_NUMBER, PARITIES, next_number, queue_bytes, queue_sides


def numbers(slots: int, less: int = 0) -> torch.Tensor:
    return torch.zeros(queue_bytes(slots) // 2 - less, dtype=torch.bfloat16)


@pytest.mark.parametrize("slots", [1, 6, 128])
def test_every_place_has_memory_of_its_own(slots: int) -> None:
    memory = numbers(slots)
    places = [place for side in queue_sides(memory, slots) for place in side]
    assert len(places) == 4 * PARITIES
    for value, place in enumerate(places, start=1):
        assert not place.any()
        place.fill_(value)
    for value, place in enumerate(places, start=1):
        assert bool((place == value).all())


def test_both_processes_see_the_same_places() -> None:
    memory = numbers(4)
    one, other = queue_sides(memory, 4), queue_sides(memory, 4)
    for mine, theirs in zip(one, other, strict=True):
        mine.outcomes[3] = 7
        mine.drafted.fill_(8)
        assert bool((theirs.outcomes[3] == 7).all())
        assert int(theirs.drafted) == 8


def test_a_block_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="hold no queue of 4 slots"):
        queue_sides(numbers(4, less=1), 4)


def test_numbers_are_never_that_of_no_pass_and_change_their_parity() -> None:
    assert next_number(0) == 1
    assert next_number(MOST_NUMBER) == 1
    assert next_number(MOST_NUMBER - 1) == MOST_NUMBER
    assert all(next_number(number) % PARITIES != number % PARITIES for number in range(1, 9))
