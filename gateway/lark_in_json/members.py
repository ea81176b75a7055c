"""Which letters of ASCII a class of a regular expression has, by llguidance's own word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.nodes import Letters

MOST_CLASSES: Final = 256
_ASCII: Final = 128


@lru_cache(maxsize=1)
def _bytes() -> LLTokenizer:
    """A vocabulary in which each byte is a token of its own number."""
    return LLTokenizer("byte")


def members_of(classes: Sequence[Letters]) -> dict[Letters, frozenset[str]]:
    """The letters below 128 that each class has: one grammar asks for all of them.

    LarkError for a class that is none, and for too many of them.
    """
    if len(classes) > MOST_CLASSES:
        raise LarkError(f"there are {len(classes)} classes of letters, the limit is {MOST_CLASSES}")
    if not classes:
        return {}
    options = " | ".join(f'"{number:02x}" /{regex_of_class(each)}/' for number, each in enumerate(classes))
    matcher = LLMatcher(_bytes(), LLMatcher.grammar_from_lark(f"start: {options}"), log_level=0)
    if matcher.is_error():
        raise LarkError(f"a class of letters cannot be read: {matcher.get_error().strip()[:200]}")
    return {each: _first_letters(matcher, f"{number:02x}") for number, each in enumerate(classes)}


def regex_of_class(letters: Letters) -> str:
    """The class as a regular expression."""
    return f"(?i:{letters.written})" if letters.ignore_case else letters.written


def _first_letters(matcher: LLMatcher, key: str) -> frozenset[str]:
    """The letters that may follow a key."""
    passed = matcher.try_consume_tokens(list(key.encode()))
    mask = matcher.compute_bitmask() if passed == len(key) else bytes(_ASCII)
    matcher.rollback(passed)
    return frozenset(chr(code) for code in range(_ASCII) if mask[code // 8] >> code % 8 & 1)
