"""Which texts a grammar lets through, as the engine says that both services use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llguidance import LLMatcher

from gateway.tokens.tokenizer import Tokenizer
from slipstream.grammar.check import check, parser_limits
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import load_tokenizer
from support.fake_verify import EOS_ID

Accepts = Callable[[Grammar, str], bool]


def acceptance(folder: Path) -> Accepts:
    """Whether a grammar accepts a text whole, token by token of the tokenizer in `folder`."""
    tokenizer = load_tokenizer(folder, vocab_size=512, eos_token_ids=[EOS_ID])
    texts = Tokenizer(folder)

    def accepts(grammar: Grammar, text: str) -> bool:
        matcher = LLMatcher(tokenizer.tokens, check(grammar, tokenizer), limits=parser_limits())
        assert not matcher.is_error(), matcher.get_error()
        ids = texts.encode(text, add_special_tokens=False)
        return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()

    return accepts
