from __future__ import annotations

from collections.abc import Iterable

import pytest

from draft_service.proposers.ngram.ngram import NgramConfig, NgramProposer
from draft_service.worker.background_scheduler import AGING_RATE, PASS_SECONDS, Background


class Time:
    """Passes as work is done."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Reader(NgramProposer):
    """Has pieces of work left that take so many seconds each."""

    def __init__(self, name: str, seconds: float, pieces: float, time: Time, done: list[str]) -> None:
        super().__init__(name, NgramConfig())
        self.seconds, self.pieces, self.time, self.done = seconds, pieces, time, done

    def advance(self) -> bool:
        if self.pieces:
            self.time.now += self.seconds
            self.pieces -= 1
            self.done.append(self.name)
        return self.pieces > 0


class Raises(NgramProposer):
    def advance(self) -> bool:
        raise RuntimeError("as asked")


def readers(time: Time, done: list[str], of: Iterable[tuple[float, float]]) -> list[Reader]:
    return [Reader(name, seconds, pieces, time, done) for name, (seconds, pieces) in zip("abc", of, strict=False)]


def finish(background: Background) -> int:
    """Passes until nothing is left."""
    passes = 1
    while background.advance():
        passes += 1
    return passes


def test_the_shorter_pieces_go_first() -> None:
    time, done = Time(), list[str]()
    finish(Background(readers(time, done, [(0.014, 20), (0.004, 20)]), time))
    read = len(done) - done[::-1].index("b")
    assert done.count("a") == done.count("b") == 20
    assert done[:read].count("a") <= 3, "one piece to learn what it takes, and what a long wait earns it"


def test_a_pass_is_one_piece_or_several_that_are_short() -> None:
    time, done = Time(), list[str]()
    background = Background(readers(time, done, [(0.014, 2), (0.2 * PASS_SECONDS, 3), (0.1 * PASS_SECONDS, 3)]), time)
    before = 0
    while background.advance():
        assert done[before:].count("a") <= 1
        assert "a" not in done[before:-1], "nothing is begun after a long piece"
        before = len(done)
    assert sorted(done) == ["a"] * 2 + ["b"] * 3 + ["c"] * 3
    background = Background(readers(time, done, [(0.2 * PASS_SECONDS, 3), (0.1 * PASS_SECONDS, 3)]), time)
    assert finish(background) == 3


@pytest.mark.parametrize("others", [1, 2])
def test_nobody_starves(others) -> None:
    time, done = Time(), list[str]()
    busy = [(0.004, float("inf"))] * others
    background = Background(readers(time, done, [(0.014, 10), *busy]), time)
    for _ in range(10 * (2 + others) * round(14 / 4 / AGING_RATE)):
        assert background.advance()
    assert done.count("a") == 10


def test_work_behind_a_long_piece_is_not_forgotten() -> None:
    time, done = Time(), list[str]()
    background = Background(readers(time, done, [(0.014, 1), (0.004, 1)]), time)
    assert background.advance(), "nobody has looked whether the other has any"
    assert background.advance() in (True, False)
    finish(background)
    assert sorted(done) == ["a", "b"]
    assert not background.advance()


def test_one_that_raises_keeps_nobody_from_working() -> None:
    time, done = Time(), list[str]()
    broken = Raises("broken", NgramConfig())
    finish(Background([broken, *readers(time, done, [(0.004, 3)])], time))
    assert done == ["a"] * 3
