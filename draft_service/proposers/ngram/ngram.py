"""N-gram proposer: what followed the last time the text ended like this.

Prompt lookup decoding (A. Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding), with several continuations
merged into a tree. A match is an earlier occurrence, in prompt or output, of the last n tokens; what followed it is
a continuation. Matches are visited longest n first and, within one n, most recent first; each adds its continuation
to a trie until the budget is spent. So the tree's first path is the most recent continuation of the longest match.
A match of n tokens is followed for a multiple of n tokens only: the shorter it is, the less it says (the same idea
as in SuffixDecoding, arXiv 2411.04975).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draft_service.proposers.base import CPU, DraftRequest, Opening, Proposer, ProposerOptions
from draft_service.proposers.ngram.index import NgramIndex, TrieRoom
from draft_service.proposers.options import configured
from slipstream_kernels.token_tree import TokenTree

_INDEX_CHUNK = 2048
"""Tokens indexed at most in one call, so that a long prompt does not hold up other sessions."""

MAX_LENGTH = 64
"""Longest n-gram that may be configured."""


@dataclass(frozen=True, slots=True)
class NgramConfig:
    """Lengths and limits.

    prompt_lookup_max, prompt_lookup_min: longest and shortest suffix that is looked up, in tokens.
    max_nodes: rows of the tree, the root included. max_depth: tokens taken from one continuation.
    max_matches: earlier occurrences visited in one call. trust: tokens taken for each token that matched.
    """

    prompt_lookup_max: int = 5
    prompt_lookup_min: int = 1
    max_nodes: int = 9
    max_depth: int = 8
    max_matches: int = 4
    trust: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max <= MAX_LENGTH:
            raise ValueError(
                f"prompt_lookup_min must be 1 to prompt_lookup_max, and that at most {MAX_LENGTH}: they are "
                f"{self.prompt_lookup_min} and {self.prompt_lookup_max}"
            )
        if not (2 <= self.max_nodes <= 64 and 1 <= self.max_depth <= 63 and self.max_matches >= 1 and self.trust >= 1):
            raise ValueError("max_nodes must be 2 to 64, max_depth 1 to 63, max_matches and trust 1 or more")


class NgramProposer(Proposer):
    """Looks up the end of the text in the text itself. Needs no model; any vocabulary."""

    device = CPU
    own_text_only = True

    def __init__(self, name: str, config: NgramConfig) -> None:
        self.name = name
        self.config = config
        self.max_nodes = config.max_nodes
        self.max_depth = config.max_depth
        self._lengths = range(config.prompt_lookup_min, config.prompt_lookup_max + 1)
        self._room = TrieRoom(config.max_matches)
        self._sessions: dict[int, NgramIndex] = {}
        self._behind: dict[int, None] = {}
        self._compile()

    def open(self, session: int, opening: Opening) -> None:
        self._sessions[session] = NgramIndex(self._lengths, opening.token_ids)
        self._behind[session] = None

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._sessions[session].extend(token_ids)
        self._behind[session] = None

    def close(self, session: int) -> None:
        self._sessions.pop(session, None)
        self._behind.pop(session, None)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [self._propose(request) for request in requests]

    def advance(self) -> bool:
        session = next(iter(self._behind), None)
        if session is not None and self._sessions[session].advance(_INDEX_CHUNK):
            del self._behind[session]
        return bool(self._behind)

    def _propose(self, request: DraftRequest) -> TokenTree | None:
        index = self._sessions[request.session]
        if not index.advance(_INDEX_CHUNK):
            return None
        self._behind.pop(request.session, None)
        return index.tree(
            self._room,
            max_nodes=min(request.max_nodes, self.max_nodes) - 1,
            max_depth=min(request.max_depth, self.max_depth),
            max_matches=self.config.max_matches,
            trust=self.config.trust,
        )

    def _compile(self) -> None:
        """Run all compiled code once, so that no request waits for it."""
        index = NgramIndex(self._lengths, [0, 0])
        index.advance(_INDEX_CHUNK)
        index.tree(self._room, max_nodes=1, max_depth=1, max_matches=1, trust=1)


def create(options: ProposerOptions) -> NgramProposer:
    """Factory. The argument, if any, is `MIN-MAX` or `MAX`, the lengths of suffixes looked up, or
    `KEY=VALUE:KEY=VALUE` with fields of NgramConfig.
    """
    low, dash, high = options.argument.partition("-")
    if low.isdecimal() and (high.isdecimal() or not dash):
        longest = int(high if dash else low)
        shortest = int(low) if dash else min(NgramConfig().prompt_lookup_min, longest)
        options = replace(options, argument=f"prompt_lookup_min={shortest}:prompt_lookup_max={longest}")
    return NgramProposer(options.name, configured(_default(options.argument), options))


def _default(argument: str) -> NgramConfig:
    """What counts where the argument says nothing. A shortest length above 5 named alone is the longest, too."""
    named = dict(pair.partition("=")[::2] for pair in argument.split(":"))
    shortest, default = named.get("prompt_lookup_min", ""), NgramConfig()
    if "prompt_lookup_max" in named or not shortest.isdecimal():
        return default
    return replace(default, prompt_lookup_max=min(MAX_LENGTH, max(default.prompt_lookup_max, int(shortest))))
