"""Draft-ahead: while a verify step runs, make trees for its likeliest outcomes.

An outcome is an accepted path of the tree that the step verifies, and a bonus token after it. The likeliest outcomes by
the proposer's own distribution get a tree each, made by a fork of the request's session that supposes their tokens.
The idea is that of SSD (arXiv 2603.03251); here verify names the tree it has taken, and nothing is ever rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import log
from typing import NamedTuple

from draft_service.proposers.base import DraftRequest, Proposer, SessionRefusedError
from draft_service.protocol.records import EMPTY_TREE
from draft_service.worker.ahead_state import CachedSpeculation
from draft_service.worker.session_table import SessionSlot
from slipstream_kernels.draft_protocol.records import ParentNode, Reply, TreeReply
from slipstream_kernels.token_tree import TokenTree

_log = logging.getLogger(__name__)

GROUP = 32
"""Sessions that are asked at once; between groups verify may turn out to have moved on."""
_FIRST_CHILD = log(0.7)
_OTHER_CHILD = log(0.3)


class _Outcome(NamedTuple):
    score: float
    slot: SessionSlot
    node: int
    token: int


@dataclass(frozen=True, slots=True)
class AheadDrafter:
    """Makes trees for the pending outcomes of all slots, as many a slot as its fan-out says.

    numbers: of sessions and trees, unique in the process.
    propose: returns checked trees of a proposer, None for each it failed at.
    is_current: whether a slot's state is the newest, as far as known.
    look: takes in the records that have arrived.
    """

    numbers: count[int]
    propose: Callable[[Proposer, list[DraftRequest]], list[TokenTree | None]]
    is_current: Callable[[SessionSlot], bool]
    look: Callable[[], None]

    def prepare(self, slots: Sequence[SessionSlot]) -> Iterator[list[Reply]]:
        """Trees ahead as they are made, group by group, the likeliest outcomes first."""
        by_proposer: dict[Proposer, list[SessionSlot]] = {}
        for slot in slots:
            if slot.ahead is not None and slot.proposer is not None and slot.ahead.outcomes_pending:
                slot.ahead.outcomes_pending = False
                by_proposer.setdefault(slot.proposer, []).append(slot)
        for proposer, pending in by_proposer.items():
            try:
                yield from self._prepare(proposer, pending)
            except Exception:  # noqa: BLE001 (a third party's code; its requests go on in lockstep)
                _log.exception("proposer %s failed to draft ahead", proposer.name)
                for slot in pending:
                    self._give_up(proposer, slot)

    def _give_up(self, proposer: Proposer, slot: SessionSlot) -> None:
        ahead, slot.ahead = slot.ahead, None
        try:
            if ahead is not None:
                ahead.close(proposer)
        except Exception:  # noqa: BLE001 (as in prepare)
            _log.exception("proposer %s failed to close a session", proposer.name)

    def _prepare(self, proposer: Proposer, slots: list[SessionSlot]) -> Iterator[list[Reply]]:
        at: dict[tuple[int, int], int] = {}
        try:
            outcomes = self._outcomes(proposer, slots, at)
            sent: set[int] = set()
            for begin in range(0, len(outcomes), GROUP):
                self.look()
                replies = self._answer(proposer, outcomes[begin : begin + GROUP], at)
                sent.update(reply.stamp.slot for reply in replies)
                yield list(replies)
            # An empty tree tells verify that the drafter keeps up, though it has nothing to propose.
            idle = [slot for slot in slots if slot.stamp.slot not in sent and self.is_current(slot)]
            yield [TreeReply(slot.stamp, EMPTY_TREE) for slot in idle if not slot.ahead or not slot.ahead.tree_id]
        finally:
            for (_, node), session in at.items():
                if node >= 0:
                    proposer.close(session)

    def _outcomes(self, proposer: Proposer, slots: list[SessionSlot], at: dict[tuple[int, int], int]) -> list[_Outcome]:
        """The likeliest outcomes of each slot's step. `at` gets the session that stands at a slot's node."""
        asked: list[tuple[float, SessionSlot, int]] = []
        fan_outs = {slot.stamp.slot: slot.ahead.fan_out for slot in slots if slot.ahead is not None}
        most = max(fan_out.most for fan_out in fan_outs.values())
        for slot in slots:
            tree = _tree(slot)
            scores = {-1: 0.0, **dict(enumerate(path_scores(tree)))}
            for node in sorted(scores, key=lambda node: -scores[node])[:most]:
                session = slot.session if node < 0 else self._fork(proposer, slot, slot.session, tree, node, ())
                if session:
                    at[slot.stamp.slot, node] = session
                    asked.append((scores[node], slot, node))
        found: list[_Outcome] = []
        for begin in range(0, len(asked), GROUP):
            group = asked[begin : begin + GROUP]
            sessions = [at[slot.stamp.slot, node] for _, slot, node in group]
            # Some of the tokens looked at after a node are its children in the tree.
            likely = proposer.next_tokens(sessions, most + 2)
            for (score, slot, node), tokens in zip(group, likely, strict=True):
                tree = _tree(slot)
                known = {tree.token_ids[child] for child in tree.children(node)}
                found.extend(_Outcome(score + gain, slot, node, token) for token, gain in tokens if token not in known)
        found.sort(key=lambda outcome: -outcome.score)
        left = {slot: fan_out.next() for slot, fan_out in fan_outs.items()}
        chosen: list[_Outcome] = []
        for outcome in found:
            left[outcome.slot.stamp.slot] -= 1
            if left[outcome.slot.stamp.slot] >= 0:
                chosen.append(outcome)
        return chosen

    def _answer(
        self, proposer: Proposer, outcomes: Sequence[_Outcome], at: dict[tuple[int, int], int]
    ) -> list[TreeReply]:
        """Trees for those outcomes that may still come true."""
        forks: list[tuple[int, _Outcome]] = []
        try:
            for outcome in outcomes:
                slot, tree = outcome.slot, _tree(outcome.slot)
                if not self.is_current(slot):
                    continue
                base = at[slot.stamp.slot, outcome.node]
                fork = self._fork(proposer, slot, base, tree, outcome.node, (outcome.token,))
                if fork:
                    forks.append((fork, outcome))
        except Exception:
            for fork, _ in forks:
                proposer.close(fork)
            raise
        requests = [DraftRequest(fork, *_limits(outcome.slot)) for fork, outcome in forks]
        trees = self.propose(proposer, requests) if requests else []
        self.look()
        replies: list[TreeReply] = []
        for (fork, outcome), made in zip(forks, trees, strict=True):
            slot, ahead = outcome.slot, outcome.slot.ahead
            if not made or ahead is None or not self.is_current(slot):
                proposer.close(fork)
                continue
            tokens = (*_path_tokens(ahead.tree, outcome.node), outcome.token)
            stamp = slot.stamp._replace(base_length=slot.stamp.base_length + len(tokens), root_token=outcome.token)
            cached = ahead.cache[tokens] = CachedSpeculation(fork, next(self.numbers), made)
            replies.append(TreeReply(stamp, made, (), cached.tree_id, ParentNode(ahead.tree_id, outcome.node)))
        return replies

    def _fork(
        self, proposer: Proposer, slot: SessionSlot, base: int, tree: TokenTree, node: int, bonus: tuple[int, ...]
    ) -> int:
        """A session that stands at a node, or behind the bonus token after it; 0 if the proposer refuses."""
        assert slot.ahead is not None
        path, opening = _path_tokens(tree, node), slot.ahead.opening
        if bonus and path:
            opening = replace(opening, token_ids=[*opening.token_ids, *path])
        fork = next(self.numbers)
        try:
            proposer.fork(base, fork, opening, bonus or path)
        except SessionRefusedError:
            return 0
        return fork


def path_scores(tree: TokenTree) -> list[float]:
    """Logarithm of the estimated probability that each node is accepted, from its rank where nothing is known."""
    if tree.log_probs is not None:
        return list(tree.log_probs)
    scores: list[float] = []
    parents: set[int] = set()
    for parent in tree.parents:
        base = 0.0 if parent < 0 else scores[parent]
        scores.append(base + (_OTHER_CHILD if parent in parents else _FIRST_CHILD))
        parents.add(parent)
    return scores


def _tree(slot: SessionSlot) -> TokenTree:
    return EMPTY_TREE if slot.ahead is None else slot.ahead.tree


def _path_tokens(tree: TokenTree, node: int) -> list[int]:
    return [tree.token_ids[each] for each in tree.path(node)]


def _limits(slot: SessionSlot) -> tuple[int, int]:
    """Rows and depth of a tree ahead. The state that it is for wants about what this one does."""
    assert slot.proposer is not None
    return min(slot.max_nodes, slot.proposer.max_nodes), min(slot.max_depth, slot.proposer.max_depth)
