"""What a step computes of each request: the rows of its tokens and of its drafted tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream_kernels.device_tree import most_rows
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.request_state import RequestState


class OutcomeCandidate(NamedTuple):
    """A tree for one way in which the step before may end: after its node `node`, -1 for none, with that token."""

    node: int
    token: int
    tree: TokenTree


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """Rows of one request in a step: `count` tokens from `first` on, and the drafted nodes below the last of them.

        tokens  |-- first --|-- count --| base
        nodes                           |-- tree, or the one of `outcome_trees` that fits --|

    first: first token whose KV was not written when this was planned; the least that it can be while `unresolved`.
    decides: the rows reach the request's last token, whose value may be known to the engine alone.
    tree: drafted nodes below that token.
    outcome_trees: candidates for a step whose number of tokens is not decided; perhaps none.
    unresolved: the step before is not decided, so that the tree is not known. The engine takes the first that fits, or
        the root alone.
    scored: positions whose logits tell logprobs of the prompt's next tokens, which the request wants.
    """

    state: RequestState
    count: int
    tree: TokenTree | None = None
    outcome_trees: tuple[OutcomeCandidate, ...] | None = None
    unresolved: bool = False
    reserved: tuple[int, int] | None = None
    """Nodes and levels reserved in a step that was launched with a tree only the device knew; else None."""
    profitable_nodes: int | None = None
    """Nodes of a device tree that were worth their rows; None for all of them."""
    first: int = field(init=False)
    decides: bool = field(init=False)
    scored: range = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.state.kv.num_computed_tokens
        self.decides = self.first + self.count == self.state.length
        self.scored = self.state.unscored(self.first, self.first + self.count)

    @property
    def base(self) -> int:
        """Tokens up to and with the last of the rows: where the step decides, the length that trees hang below."""
        return self.first + self.count

    @property
    def prompt_rows(self) -> int:
        """Tokens of the prompt among the rows."""
        return max(0, min(self.base, self.state.prompt_length) - self.first)

    @property
    def depth(self) -> int:
        """Most nodes that may be accepted of `tree`."""
        return self._most[1]

    @property
    def max_accepted(self) -> int:
        """Most nodes that may be accepted, whichever of `outcome_trees` fits."""
        return max((each.tree.depth for each in self.outcome_trees or ()), default=0) if self.unresolved else self.depth

    @property
    def num_rows(self) -> int:
        """Rows that decide a token: the root and the drafted nodes."""
        return 1 + self._most[0]

    @property
    def max_rows(self) -> int:
        """Rows that the pass reserves: the root and the largest of `outcome_trees`."""
        if self.outcome_trees is None:
            return self.num_rows
        return 1 + max((len(each.tree) for each in self.outcome_trees), default=0)

    @property
    def _most(self) -> tuple[int, int]:
        return self.reserved or most_rows(self.tree)

    def resolve(self, before: AcceptedPath) -> None:
        """Take the tree of `outcome_trees` that fits the accepted path of the step before."""
        node = before.nodes[-1] if before.nodes else -1
        fitting = (
            each.tree for each in self.outcome_trees or () if (each.node, each.token) == (node, before.tokens[-1])
        )
        self.first += len(before.nodes)
        self.tree = next(fitting, None)
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
