"""Suffix proposer: what followed whenever a text ended like this, here or in the tenant's past responses.

SuffixDecoding (G. Oliaro, Z. Jia, D. Campos, A. Qiao, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI
Applications", arXiv 2411.04975). Two suffix trees that count (`suffix.tree`): one of this request's prompt and output,
one of past responses of the same tenant and adapter (`suffix.cache`). The end of the text is found in both at every
length, and the likeliest continuation over all of them is drafted, longer after longer matches (`suffix.search`).

The structures are compiled by numba, which the project has for its CPU kernels anyway: no compiler is needed where it
is installed, unlike for a C++ extension or Arctic Inference's package, which comes as source and builds with torch and
pinned versions of protobuf. Code is compiled at a machine's first start and loaded from disk at later ones, never while
requests run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draft_service.proposers.base import CPU, DraftRequest, Opening, Proposer, ProposerOptions
from draft_service.proposers.options import configured
from draft_service.proposers.suffix.cache import Key, SuffixCache
from draft_service.proposers.suffix.memory import MAX_TREE_DEPTH
from draft_service.proposers.suffix.search import SuffixSearch
from draft_service.proposers.suffix.tree import SuffixTree
from slipstream_kernels.token_tree import TokenTree

PIECE = 512
"""Tokens of a request's text taken in at most in one call, so that a long prompt does not hold up other sessions."""


@dataclass(frozen=True, slots=True)
class SuffixConfig:
    """Parameters by the names of SuffixDecoding's users, where `suffix_decoding_` may stand before them.

    max_tree_depth: tokens of a match and its continuation together. max_spec_factor, max_spec_offset: a match of m
    tokens is continued by at most m * factor + offset. min_token_prob: least path probability of a drafted token.
    max_cached_requests, max_cached_tokens: past responses kept over all tenants; 0 requests: only the request's own
    text is used. mode: `tree` or `path`. max_nodes: rows of the tree, the root included. max_depth: longest path.
    """

    max_tree_depth: int = 64
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    max_cached_requests: int = 10_000
    max_cached_tokens: int = 4_000_000
    mode: str = "tree"
    max_nodes: int = 33
    max_depth: int = 32

    def __post_init__(self) -> None:
        rules = {
            f"max_tree_depth must be 2 to {MAX_TREE_DEPTH}": 2 <= self.max_tree_depth <= MAX_TREE_DEPTH,
            "max_spec_factor must be 0 to 64": 0 <= self.max_spec_factor <= 64,
            "max_spec_offset must be -64 to 64": -64 <= self.max_spec_offset <= 64,
            "min_token_prob must be 0 to 1": 0 <= self.min_token_prob <= 1,
            "max_cached_requests must be 0 or more": self.max_cached_requests >= 0,
            "max_cached_tokens must be 1 to 100000000": 1 <= self.max_cached_tokens <= 100_000_000,
            "mode must be tree or path": self.mode in ("tree", "path"),
            "max_nodes must be 2 to 64": 2 <= self.max_nodes <= 64,
            "max_depth must be 1 to 63": 1 <= self.max_depth <= 63,
        }
        broken = [rule for rule, kept in rules.items() if not kept]
        if broken:
            raise ValueError(broken[0])


@dataclass(slots=True)
class _Session:
    """One request: `length` tokens are staged in its tree, of which those from `response` on will be cached.

    A session that opens in the middle of a response caches what is said from there on, with as much before it as a path
    holds: what came earlier was cached when the session before it closed.
    """

    tree: SuffixTree
    key: Key
    response: int
    length: int


class SuffixProposer(Proposer):
    """Drafts from suffix trees. Needs no model; any vocabulary."""

    device = CPU

    def __init__(self, name: str, config: SuffixConfig) -> None:
        self.name = name
        self.config = config
        self.max_nodes = config.max_nodes
        self.max_depth = config.max_depth
        self.own_text_only = config.max_cached_requests == 0
        self.cache = SuffixCache(config.max_tree_depth, config.max_cached_requests, config.max_cached_tokens)
        self._search = SuffixSearch(
            as_tree=config.mode == "tree",
            factor=config.max_spec_factor,
            offset=config.max_spec_offset,
            min_prob=config.min_token_prob,
        )
        self._sessions: dict[int, _Session] = {}
        self._behind: dict[int, None] = {}
        _compile()

    def open(self, session: int, opening: Opening) -> None:
        length = len(opening.token_ids)
        tree = SuffixTree(self.config.max_tree_depth, tokens=length)
        tree.stage(0, opening.token_ids)
        response = max(opening.prompt_length, length - self.config.max_tree_depth)
        self._sessions[session] = _Session(tree, (opening.tenant, opening.adapter_id), response, length)
        self._behind[session] = None

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        state = self._sessions[session]
        state.tree.stage(state.length, token_ids)
        state.length += len(token_ids)
        self._behind[session] = None

    def close(self, session: int) -> None:
        state = self._sessions.pop(session, None)
        self._behind.pop(session, None)
        if state is not None:
            self.cache.add(state.key, state.tree.memory.text[state.response : state.length].copy())

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [self._propose(request) for request in requests]

    def advance(self) -> bool:
        session = next(iter(self._behind), None)
        if session is not None:
            self._catch_up(session)
        return self.cache.advance() or bool(self._behind)

    def _propose(self, request: DraftRequest) -> TokenTree | None:
        if not self._catch_up(request.session):
            return None
        state = self._sessions[request.session]
        return self._search(
            state.tree.memory.address,
            self.cache.address(state.key),
            min(request.max_nodes, self.max_nodes) - 1,
            min(request.max_depth, self.max_depth),
        )

    def _catch_up(self, session: int) -> bool:
        """Take in a piece of what has been staged; returns whether that was all."""
        state = self._sessions[session]
        missing = state.length - state.tree.end
        if missing > 0:
            state.tree.append(min(missing, PIECE))
        if missing > PIECE:
            return False
        self._behind.pop(session, None)
        return True


def create(options: ProposerOptions) -> SuffixProposer:
    """Factory. The argument, if any, is `KEY=VALUE:KEY=VALUE` with fields of SuffixConfig."""
    return SuffixProposer(options.name, configured(SuffixConfig(), options, prefix="suffix_decoding_"))


def _compile() -> None:
    """Run all compiled code once, so that no request waits for it."""
    tokens = np.array([1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2], np.int32)
    cache = SuffixCache(4, 1, 64)
    for _ in range(2):
        cache.add(("", ""), tokens)
    while cache.advance():
        pass
    tree = SuffixTree(4)
    tree.stage(0, tokens)
    tree.append(len(tokens))
    SuffixSearch(as_tree=True, factor=1.0, offset=0.0, min_prob=0.1)(tree.memory.address, cache.address(("", "")), 8, 8)
