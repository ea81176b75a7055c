"""Terminals that can be imported are those of llguidance: they match the same texts."""

from __future__ import annotations

from random import Random

import pytest
from llguidance import LLMatcher, LLTokenizer

from gateway.lark_in_json.common import COMMON

LETTERS = 'aAé0_9+-.eE"\\ \t\f\r\n\v#/*-'


def matcher_of(lark: str) -> LLMatcher:
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def passed(matcher: LLMatcher, text: str) -> tuple[int, bool]:
    matcher.reset()
    return matcher.try_consume_tokens(list(text.encode())), matcher.is_accepting()


@pytest.mark.parametrize("name", COMMON)
def test_an_imported_terminal(name: str) -> None:
    theirs = matcher_of(f"start: X\n%import common.{name} -> X")
    ours = matcher_of(f"start: /{COMMON[name]}/")
    random = Random(0)
    heads = ["", "#", "//", "/*", "/**", "--", '"', "1.", "1e", "\r"]
    texts = [random.choice(heads) + "".join(random.choices(LETTERS, k=random.randrange(7))) for _ in range(300)]
    texts += [text + tail for text in texts[:50] for tail in ("*/", '"')]
    for text in texts:
        assert passed(ours, text) == passed(theirs, text), text
