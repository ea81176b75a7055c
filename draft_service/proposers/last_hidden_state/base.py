"""What proposers share that draft from one state of the target, wherever they compute.

They keep no keys and values and have no text to work off, so a request costs nothing until it wants a tree, and gets
its first one with its first token, whatever was cached.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from draft_service.proposers.base import Proposer, Target
from draft_service.proposers.checkpoint_folder import check_states, check_tokenizer, warm_up_with_states
from draft_service.proposers.round_costs import measure_rounds
from draft_service.proposers.tree_expansion import usual_rows
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.capture_layers import boundaries_of
from slipstream_kernels.token_tree import MAX_ROWS


@dataclass(frozen=True, slots=True)
class LastHiddenStateConfig:
    """Limits, and what the checkpoint leaves open.

    max_depth, top_k, max_nodes: as SGLang's num_steps, topk and num_draft_tokens. max_depth 0, or more than the
    checkpoint can, stands for what it can; max_nodes 0 for `usual_rows`. target: folder that lends the tokenizer, and
    scoring rows where there are none. token_map: file of the target ids that are scored. boundaries: the one to read,
    in place of that behind the final norm. A GPU makes room beforehand, for max_sessions open at once.
    """

    max_depth: int = 0
    top_k: int = 4
    max_nodes: int = 0
    target: str = ""
    token_map: str = ""
    boundaries: str = ""
    max_sessions: int = 128

    def __post_init__(self) -> None:
        if not (0 <= self.max_depth < MAX_ROWS and 1 <= self.top_k <= 16):
            raise ValueError("max_depth must be 1 to 63, top_k 1 to 16")
        if self.max_nodes not in (0, *range(2, MAX_ROWS + 1)):
            raise ValueError("max_nodes must be 2 to 64")
        if self.boundaries and not self.boundaries.isdecimal():
            raise ValueError(f"boundaries are {self.boundaries!r}, must be one number")
        if self.max_sessions < 1:
            raise ValueError("max_sessions must be at least 1")


class LastHiddenStateHead(Protocol):
    """Weights that draft from one state. Their length is that of the longest path."""

    hidden_size: int
    """Width of the target's states."""
    target_size: int
    """Entries of the target's vocabulary."""
    entries: int
    """How many of them are scored."""

    def __len__(self) -> int: ...


Head = TypeVar("Head", bound=LastHiddenStateHead)


class LastHiddenStateBase(Proposer, Generic[Head]):
    """Limits and the boundary of weights of one kind. Subclasses hold the weights."""

    trained_on_states = True
    own_text_only = True

    def __init__(self, name: str, head: Head, config: LastHiddenStateConfig, tokenizer_fingerprint: str) -> None:
        depth = min(config.max_depth or len(head), len(head), MAX_ROWS - 1)
        self.name = name
        self.config = config
        self.max_nodes = config.max_nodes or usual_rows(depth, config.top_k)
        self.max_depth = min(depth, self.max_nodes - 1)
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.vocab_size = head.target_size
        self._hidden_size = head.hidden_size

    def bind(self, target: Target) -> None:
        check_tokenizer(self.tokenizer_fingerprint, target)
        check_states(self._hidden_size, target)
        known = boundaries_of(target.num_layers)
        boundary = int(self.config.boundaries or known[-1])
        if boundary not in known:
            raise FailedPreconditionError(f"boundaries are {boundary}, must be one of 0 to {known[-1]}")
        self.feature_boundaries = (boundary,)
        self.limit_vocabulary(target.vocab_size)
        self.warm_up()
        self.round_costs = measure_rounds(self, self._hidden_size)

    @abstractmethod
    def limit_vocabulary(self, size: int) -> None:
        """Never draft ids from `size` on: the target has no such tokens. Only while no session is open."""

    def warm_up(self) -> None:
        """Compile every kernel that a round uses. Only while no session is open."""
        warm_up_with_states(self, self._hidden_size)
