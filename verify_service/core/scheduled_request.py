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
    """`count` tokens of a request from `first` on, its first token whose KV was not written when this was planned.

    The step `decides` where the rows reach the request's last token, whose value may be known to the engine alone;
    then drafted nodes, if there are any, hang below it in `tree`. Where the engine may not even know how many tokens
    the step before decides, there are `choices`, perhaps none: it takes the tree of the first that fits, or the root
    alone. Until that step is decided, the rows are `unsettled`, and `first` is the least that it can be. The logits at
    positions `scored` tell logprobs of the prompt's next tokens, which the request wants.
    """

    state: RequestState
    count: int
    tree: TokenTree | None = None
    choices: tuple[OutcomeCandidate, ...] | None = None
    unsettled: bool = False
    laid: tuple[int, int] | None = None
    """Nodes and levels that the step has room for, where it was launched with a tree that only the device knew."""
    worth: int | None = None
    """Nodes of such a tree that were worth their rows, where that is not all of them."""
    first: int = field(init=False)
    decides: bool = field(init=False)
    scored: range = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.state.computed
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
        """Nodes that may be accepted."""
        return self._most[1]

    @property
    def reach(self) -> int:
        """Nodes that may be accepted, whatever is chosen."""
        return max((each.tree.depth for each in self.choices or ()), default=0) if self.unsettled else self.depth

    @property
    def num_rows(self) -> int:
        """Rows that decide a token: the root and the drafted nodes."""
        return 1 + self._most[0]

    @property
    def room(self) -> int:
        """Rows that the pass has for them."""
        if self.choices is None:
            return self.num_rows
        return 1 + max((len(each.tree) for each in self.choices), default=0)

    @property
    def _most(self) -> tuple[int, int]:
        return self.laid or most_rows(self.tree)

    def settle(self, before: AcceptedPath) -> None:
        """The step before has decided this, by which the engine chose."""
        node = before.nodes[-1] if before.nodes else -1
        fitting = (each.tree for each in self.choices or () if (each.node, each.token) == (node, before.tokens[-1]))
        self.first += len(before.nodes)
        self.tree = next(fitting, None)
        self.unsettled = False


@dataclass(slots=True)
class SchedulerOutput:
    """One forward pass: requests in the order of their arrival within each of decode and prefill.

    Those `left_out` decode, but take turns with others of their tenant, or are held back while they await trees.
    """

    rows: list[ScheduledRequest] = field(default_factory=list)
    started: list[RequestState] = field(default_factory=list)
    preempted: list[RequestState] = field(default_factory=list)
    left_out: frozenset[RequestState] = frozenset()
