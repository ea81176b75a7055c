"""What is done with a grammar before it is used: it is checked, compiled, and its first mask is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llguidance import LLMatcher

from slipstream.grammar.check import check, parser_limits, refusal
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer

T = TypeVar("T")


def compile_text(text: str, tokenizer: GrammarTokenizer) -> LLMatcher:
    """Return a matcher at the beginning of what `check` has returned; it may be in error. It recurses deep."""
    return LLMatcher(tokenizer.tokens, text, log_level=0, limits=parser_limits())


def check_start(grammar: Grammar, start: LLMatcher) -> None:
    """Compute the first mask of a compiled grammar. Raises InvalidArgumentError where it allows nothing, or trips."""
    field = f"grammar.{grammar.kind}"
    if start.is_error():
        raise refusal(field, start.get_error().strip().partition("\n")[0])
    probe = start.deep_copy()
    first = probe.compute_bitmask()
    if probe.is_error():
        raise refusal(field, probe.get_error().strip().partition("\n")[0])
    if not any(first):
        raise refusal(field, "it allows no output at all")


def try_out(grammar: Grammar, tokenizer: GrammarTokenizer) -> None:
    """Do all of it, on the stack of the caller. Raises InvalidArgumentError."""
    text = check(grammar, tokenizer, run=_call)
    check_start(grammar, compile_text(text, tokenizer))


def _call(work: Callable[[], T]) -> T:
    return work()
