"""Trees of one slot for the outcomes that the step in flight may have (arXiv 2603.03251)."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream_kernels.draft_protocol.records import ParentNode, TreeReply
from verify_service.draft_link.records import NO_NODE

Outcome = tuple[int, int, ParentNode]
"""Base length, root token and last accepted node of the state that a step leads to."""


def outcome_of(reply: TreeReply) -> Outcome:
    """Return the outcome that a tree was made ahead for."""
    assert reply.parent is not None
    return reply.stamp.base_length, reply.stamp.root_token, reply.parent


@dataclass(slots=True, eq=False)
class SpeculationCache:
    """At most `capacity` trees, within `max_nodes` (root included) and `max_depth`; from commit to commit.

    put() --> trees --> take() for a step that is launched before its state is known, or advance() to the outcome
    """

    capacity: int = 0
    """0 for a drafter in lockstep."""
    max_nodes: int = 1
    max_depth: int = 0
    """The proposer's limits: the budget of the next state is not known while its trees are made."""
    trees: dict[Outcome, TreeReply] = field(default_factory=dict)
    taken: bool = False
    """Whether the next step was launched with the trees, and selects the one that fits; no more are put."""
    last_outcome: ParentNode = NO_NODE
    """The last node accepted by the step that led to the present state."""
    kept_up: bool = False
    """Whether the drafter kept up with the last step: it had a tree, or trees for some of its outcomes."""

    @property
    def has_room(self) -> bool:
        return len(self.trees) < self.capacity

    def accepts(self, reply: TreeReply) -> bool:
        """Return whether a tree for an outcome may be put."""
        return not self.taken and (self.has_room or outcome_of(reply) in self.trees)

    def put(self, reply: TreeReply) -> None:
        """Keep a checked tree until the step is over."""
        self.trees[outcome_of(reply)] = reply

    def take(self) -> dict[Outcome, TreeReply]:
        """Return all trees, of which the next step is launched with those that fit the one in flight."""
        self.taken = True
        return self.trees

    def advance(self, base_length: int, root_token: int, *, had_tree: bool) -> TreeReply | None:
        """Drop all trees; return the one for this state if it was reached by `last_outcome`.

        `had_tree`: the last step was given a tree.
        """
        if not self.trees:
            self.taken, self.kept_up = False, had_tree
            return None
        trees, self.trees, self.taken = self.trees, {}, False
        self.kept_up = bool(trees) or had_tree
        return trees.get((base_length, root_token, self.last_outcome))

    def clear(self) -> None:
        """Let the request go."""
        self.trees = {}
        self.taken = self.kept_up = False
        self.last_outcome = NO_NODE
