"""What a step computes of each request: the rows of its tokens and of its drafted tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream_kernels.device_tree import most_rows
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.request_state import RequestState


class ScheduledRequest:
    """Rows of one request in a step: `count` tokens from `first` on, and the drafted nodes below the last of them.

        tokens  |-- first --|-- count --| base
        nodes                           |-- tree --|

    first: first token whose KV was not written when this was planned; the least that it can be while `unresolved`.
    base: tokens up to and with the last of the rows: where the step decides, the length that trees hang below.
    decides: the rows reach the request's last token, whose value may be known to the engine alone.
    tree: drafted nodes below that token.
    unresolved: the step before has trees and is not decided: `first` and `base` may be lower than those the engine
        finds. A tree is one that a device drafts behind that step.
    profitable_nodes: nodes of a device tree that were worth their rows; None for all of them.
    scored: positions whose logits tell logprobs of the prompt's next tokens, which the request wants.
    depth: most nodes that may be accepted of `tree`.
    num_rows: rows that decide a token, the root and the drafted nodes.
    """

    __slots__ = (
        "_tree",
        "base",
        "count",
        "decides",
        "depth",
        "first",
        "num_rows",
        "profitable_nodes",
        "reserved",
        "scored",
        "state",
        "unresolved",
    )

    def __init__(
        self,
        state: RequestState,
        count: int,
        tree: TokenTree | None = None,
        *,
        unresolved: bool = False,
    ) -> None:
        first = state.kv.num_computed_tokens
        self.state = state
        self.count = count
        self.first = first
        self.base = base = first + count
        self.decides = base == state.length
        self.scored: range = state.unscored(first, base)
        self.unresolved = unresolved
        self.profitable_nodes: int | None = None
        self.reserved = False
        self._tree: TokenTree | None = None
        self.depth = 0
        self.num_rows = 1
        if tree is not None:
            self.tree = tree

    @property
    def tree(self) -> TokenTree | None:
        return self._tree

    @tree.setter
    def tree(self, tree: TokenTree | None) -> None:
        self._tree = tree
        nodes, self.depth = most_rows(tree)
        self.num_rows = 1 + nodes

    def know(self, tree: TokenTree | None) -> None:
        """Take what the host has read of a tree that only the device knew; the step has room for what it could be."""
        self._tree = tree
        self.reserved = True

    @property
    def drafted(self) -> bool:
        """Whether any row is a tree's, or was kept for one."""
        return self._tree is not None or self.reserved

    @property
    def is_likely_last(self) -> bool:
        """Whether the request has all of its tokens with this step if half of the tree's levels are accepted."""
        return self.decides and self.base + 1 + self.depth // 2 >= self.state.parameters.max_length

    @property
    def prompt_rows(self) -> int:
        """Tokens of the prompt among the rows."""
        return max(0, min(self.base, self.state.prompt_length) - self.first)

    def resolve(self, before: AcceptedPath) -> None:
        """Take in the accepted path of the step before."""
        self.first += len(before.nodes)
        self.base = self.first + self.count
        self.unresolved = False


@dataclass(slots=True)
class SchedulerOutput:
    """One forward pass: requests in the order of their arrival within each of decode and prefill.

    Those `left_out` decode, but take turns with others of their tenant, or are held back while they await trees.
    """

    rows: list[ScheduledRequest] = field(default_factory=list)
    started: list[RequestState] = field(default_factory=list)
    preempted: list[RequestState] = field(default_factory=list)
    left_out: frozenset[RequestState] = frozenset()
