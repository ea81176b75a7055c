"""What a grammar leaves of the vocabulary, by llguidance's masks alone: a new matcher for every output."""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from slipstream.grammar.check import check, parser_limits
from slipstream.grammar.tokenizer import GrammarTokenizer
from verify_service.core.request import SamplingParams


class PlainGrammar:
    def __init__(self, params: SamplingParams, tokenizer: GrammarTokenizer) -> None:
        assert params.grammar is not None
        self._params, self._tokenizer = params, tokenizer
        self._starts = set(params.grammar.starts_after)
        text = check(params.grammar, tokenizer)
        self._start = LLMatcher(tokenizer.tokens, text, log_level=0, limits=parser_limits())

    def legal(self, output: list[int]) -> NDArray[np.bool_] | None:
        if self._starts:
            at = next((index for index, token in enumerate(output) if token in self._starts), None)
            if at is None:
                return None
            output = output[at + 1 :]
        matcher = self._start.deep_copy()
        for token in output:
            matcher.compute_bitmask()
            assert matcher.consume_token(token), matcher.get_error()
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        legal = np.unpackbits(bits, bitorder="little")[: self._tokenizer.vocab_size].astype(np.bool_)
        for token in set(self._params.stop_token_ids) & set(self._tokenizer.specials.values()):
            legal[token] = matcher.is_accepting()
        eos = list(self._tokenizer.eos_token_ids)
        assert (legal[eos] == matcher.is_accepting()).all()
        if self._params.ignore_eos:
            others = legal.copy()
            others[eos] = False
            legal = others if others.any() else legal
        return legal
