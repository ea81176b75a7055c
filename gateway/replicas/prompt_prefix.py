"""A prompt's prefixes by the names that verify services tell them by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from gateway.core.request import ChoiceRequest
from slipstream.prefix_hash import hash_prompt, mark, prefix_salt


@dataclass(slots=True)
class PromptPrefix:
    """The names of a prompt's prefixes (slipstream.prefix_hash), shortest first, and its number of tokens.

    `computed_whole`: nothing is read from the cache, as logprobs of the prompt are asked for.
    """

    names: Sequence[int]
    tokens: int
    page_size: int
    computed_whole: bool = False

    @classmethod
    def of(cls, request: ChoiceRequest, page_size: int) -> Self:
        """Name the prefixes of a request's prompt; hashes that were computed as it was tokenised are used."""
        known, token_ids = request.prompt_hashes, request.prompt_token_ids
        if known is None or known.page_size != page_size:
            known = hash_prompt(token_ids, page_size)
        salt = prefix_salt(request.tenant, request.adapter_id)
        whole = request.sampling.prompt_logprobs is not None
        return cls([each ^ salt for each in known.hashes], len(token_ids), page_size, whole)

    def cached_tokens(self, count: int) -> int:
        """Tokens that are not computed where the first `count` prefixes are cached. The last token always is."""
        if not count or self.computed_whole:
            return 0
        return min(mark(count) * self.page_size, self.tokens - 1)
