"""Panics of llguidance, as pyo3 raises them: real ones, of a tokenizer whose Python part fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

WORDS = "no such text"


class _Failing:
    eos_token_id = 0
    bos_token_id = None
    tokens = (b"<end>", *(bytes([value]) for value in range(256)))
    special_token_ids = (0,)

    def __init__(self) -> None:
        self.fails = False

    def __call__(self, text: Any) -> list[int]:
        if self.fails:
            raise ValueError(WORDS)
        return [1 + value for value in (text.encode() if isinstance(text, str) else text)]


def failing_tokens() -> LLTokenizer:
    """A tokenizer that panics whenever it splits a text."""
    failing = _Failing()
    tokens = LLTokenizer(TokenizerWrapper(failing))
    failing.fails = True
    return tokens


def panic() -> NoReturn:
    failing_tokens().tokenize_bytes(b"a")
    raise AssertionError("it does not panic")


class PanickingMatcher:
    """A matcher that panics where `when` says so of a method's name, and of how many tokens were followed."""

    def __init__(self, inner: LLMatcher, when: Callable[[str, int], bool], followed: int = 0) -> None:
        self.inner, self.when, self.followed = inner, when, followed

    def deep_copy(self) -> PanickingMatcher:
        self._look("deep_copy")
        return PanickingMatcher(self.inner.deep_copy(), self.when, self.followed)

    def consume_tokens(self, tokens: list[int]) -> bool:
        self._look("consume_tokens")
        done = self.inner.consume_tokens(tokens)
        self.followed += len(tokens) * done
        return done

    def rollback(self, count: int) -> bool:
        self._look("rollback")
        self.followed -= count
        return self.inner.rollback(count)

    def __getattr__(self, name: str) -> Any:
        if name not in ("is_error", "get_error"):
            self._look(name)
        return getattr(self.inner, name)

    def _look(self, name: str) -> None:
        if self.when(name, self.followed):
            panic()
