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
from dataclasses import dataclass, field

from draft_service.proposers.base import DraftRequest, Opening, Proposer, ProposerOptions
from slipstream.rpc.errors import InvalidArgumentError
from slipstream_kernels.token_tree import TokenTree

_INDEX_CHUNK = 2048
"""Tokens indexed at most in one call, so that a long prompt does not hold up other sessions."""


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
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise InvalidArgumentError("n-gram lengths must satisfy 1 <= min <= max", field="proposers")
        if not (2 <= self.max_nodes <= 64 and 1 <= self.max_depth <= 63 and self.max_matches >= 1 and self.trust >= 1):
            raise InvalidArgumentError("max_nodes must be 2 to 64, max_depth 1 to 63, matches and trust 1 or more")


@dataclass(slots=True)
class NgramIndex:
    """Tokens of one session and where each of their n-grams last ended.

    `latest[n]` maps an n-gram to the newest position just after it that has a token; `earlier[n][position]` is
    the position before that of the same n-gram, -1 if none. Positions below `indexed` are in the index.
    """

    lengths: range
    tokens: list[int]
    latest: dict[int, dict[tuple[int, ...], int]] = field(default_factory=dict)
    earlier: dict[int, list[int]] = field(default_factory=dict)
    indexed: int = 0

    def __post_init__(self) -> None:
        self.latest = {n: {} for n in self.lengths}
        self.earlier = {n: [] for n in self.lengths}

    def advance(self, limit: int) -> bool:
        """Index up to `limit` further tokens; returns whether all are indexed now."""
        end = min(len(self.tokens), self.indexed + limit)
        tokens = self.tokens
        for n in self.lengths:
            latest, earlier = self.latest[n], self.earlier[n]
            for position in range(self.indexed, end):
                if position < n:
                    earlier.append(-1)
                    continue
                gram = tuple(tokens[position - n : position])
                earlier.append(latest.get(gram, -1))
                latest[gram] = position
        self.indexed = end
        return end == len(tokens)

    def matches(self, limit: int) -> dict[int, int]:
        """Positions that follow an earlier occurrence of the present suffix, and how many tokens match there.

        Longest first, then most recent.
        """
        found: dict[int, int] = {}
        for n in reversed(self.lengths):
            if n > len(self.tokens):
                continue
            position = self.latest[n].get(tuple(self.tokens[-n:]), -1)
            while position >= 0 and len(found) < limit:
                found.setdefault(position, n)
                position = self.earlier[n][position]
        return found

    def tree(self, *, max_nodes: int, max_depth: int, max_matches: int, trust: int) -> TokenTree | None:
        """Merge the continuations of all matches into a tree of at most `max_nodes` nodes, the root not counted."""
        children: dict[tuple[int, int], int] = {}
        token_ids: list[int] = []
        parents: list[int] = []
        for position, length in self.matches(max_matches).items():
            node = -1
            for token in self.tokens[position : position + min(max_depth, trust * length)]:
                child = children.get((node, token))
                if child is None:
                    if len(token_ids) == max_nodes:
                        break
                    child = children[node, token] = len(token_ids)
                    token_ids.append(token)
                    parents.append(node)
                node = child
            if len(token_ids) == max_nodes:
                break
        return TokenTree(tuple(token_ids), tuple(parents)) if token_ids else None


class NgramProposer(Proposer):
    """Looks up the end of the text in the text itself. Needs no model; any vocabulary."""

    def __init__(self, name: str, config: NgramConfig) -> None:
        self.name = name
        self.config = config
        self.max_nodes = config.max_nodes
        self.max_depth = config.max_depth
        self._lengths = range(config.prompt_lookup_min, config.prompt_lookup_max + 1)
        self._sessions: dict[int, NgramIndex] = {}
        self._behind: dict[int, None] = {}

    def open(self, session: int, opening: Opening) -> None:
        self._sessions[session] = NgramIndex(self._lengths, list(opening.token_ids))
        self._behind[session] = None

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._sessions[session].tokens.extend(token_ids)
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
            max_nodes=min(request.max_nodes, self.max_nodes) - 1,
            max_depth=min(request.max_depth, self.max_depth),
            max_matches=self.config.max_matches,
            trust=self.config.trust,
        )


def create(options: ProposerOptions) -> NgramProposer:
    """Factory. The argument, if any, is `MIN-MAX` or `MAX`: the lengths of suffixes looked up."""
    default = NgramConfig()
    shortest, longest = default.prompt_lookup_min, default.prompt_lookup_max
    if options.argument:
        low, dash, high = options.argument.partition("-")
        if not (low.isdecimal() and (high.isdecimal() or not dash)):
            raise InvalidArgumentError(
                f"proposer {options.name}: argument must be MAX or MIN-MAX, not {options.argument!r}", field="proposers"
            )
        shortest, longest = (int(low), int(high)) if dash else (min(shortest, int(low)), int(low))
    max_depth = options.max_depth or default.max_depth
    config = NgramConfig(
        prompt_lookup_max=longest,
        prompt_lookup_min=shortest,
        max_nodes=options.max_nodes or default.max_nodes,
        max_depth=max_depth,
    )
    return NgramProposer(options.name, config)
