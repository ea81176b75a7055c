"""The path that a step decides of a request with a grammar: sample, check or mask, then match.

A token that was sampled without a mask and is legal is the one that a mask gives, too, where no filter comes after the
mask: the largest of all scores is the largest of the legal ones. So greedy tokens, and those of a plain temperature,
are checked first, and masks are computed at the rows alone where they were not legal. Top-k, top-p and min-p keep other
tokens where illegal ones are out of their way: with these every row on the path is sampled under its mask. Rows off the
path decide nothing, and need no mask.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

from verify_service.core.acceptance import NO_TOKEN, AcceptedPath, child_of
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.grammar.matcher import GrammarFailure, Words
from verify_service.grammar.request_grammar import AllowedTokens, RequestGrammar
from verify_service.grammar.together import Together
from verify_service.model_runner.masks_ahead import NO_MASKS, Masks

_log = logging.getLogger(__name__)
R = TypeVar("R")


class MaskedRow(NamedTuple):
    """A row of a step's logits, to be sampled under a mask as of `TokenMatcher.allowed`.

    `position` is the row's own, `tokens` are those that lead to it from the root on.
    """

    item: ScheduledRequest
    row: int
    position: int
    tokens: tuple[int, ...]
    words: Words


SampleMasked = Callable[[Sequence[MaskedRow]], Sequence[int]]


class ConstrainedPath:
    """One request's walk from the root of its tree.

    `sampled` are tokens of its rows: by 0 for the root, 1 + i for node i. Those of rows `under_mask` were sampled under
    their masks, others without. The walk ends where it comes to a node that is not among them. `masks` are there
    already.
    """

    def __init__(
        self,
        item: ScheduledRequest,
        grammar: RequestGrammar,
        first_row: int,
        sampled: Mapping[int, int],
        masks: Masks = NO_MASKS,
        under_mask: Collection[int] = (),
    ) -> None:
        self.item = item
        self._grammar = grammar
        self._first_row = first_row
        self._sampled = sampled
        self._masks = masks
        self._under_mask = under_mask
        self._masks_first = item.state.parameters.sampling.is_filtered
        self._nodes: list[int] = []
        self._tokens: list[int] = []
        self._failure = ""
        self._strayed = False

    @property
    def _node(self) -> int:
        return self._nodes[-1] if self._nodes else -1

    @property
    def may_be_cut(self) -> bool:
        """Whether anything is decided that the path may end with."""
        return bool(self._nodes)

    def cut(self) -> None:
        """End in front of the node that the path is at, whose token is decided: it was merely not verified."""
        self._nodes.pop()

    def note_unmasked(self, token: int) -> None:
        """Take note of what the root would have got without its mask, under which it was sampled."""
        self._strayed = not self._masks_first and token != self._sampled[0]

    def begin(self) -> bool:
        """Follow what was sampled as far as that decides; return whether the next token needs a mask."""
        return self._guarded(self._begin) is True

    def due(self) -> list[MaskedRow]:
        """Return what is to be sampled now: the row that the path is at, and those behind it where all need masks.

        These are rows that the path comes to if each mask leaves the token that was sampled without. Nothing where the
        mask itself decided, and the path is over.
        """
        return self._guarded(self._due) or []

    @property
    def lacking(self) -> RequestGrammar | None:
        """The grammar where a path that waits has no mask for its next token, which is to be asked for it."""
        return self._grammar if 1 + self._node not in self._masks else None

    def give(self, allowed: AllowedTokens) -> None:
        """The mask that it lacked."""
        self._masks = {**self._masks, 1 + self._node: allowed}

    def settle(self, rows: Sequence[MaskedRow], tokens: Sequence[int]) -> bool:
        """Take tokens that were sampled at rows `due`, as far as the path comes to them; return as `begin` does."""
        return self._guarded(lambda: self._settle(rows, tokens)) is True

    def result(self) -> VerifyResult:
        self._grammar.end_step(strayed=self._strayed)
        path = AcceptedPath(tuple(self._nodes), tuple(self._tokens))
        return VerifyResult(self.item, path, self._first_row, self._failure)

    def _begin(self) -> bool:
        self.item.state.follow_output()
        return self._go_on()

    def _take(self, token: int) -> bool:
        """Take the next token; return whether the path goes on behind it."""
        self._tokens.append(token)
        if token == NO_TOKEN or self._grammar.ends_output(token):
            return False
        node = child_of(self.item.tree, self._node, token)
        if node is None or 1 + node not in self._sampled:
            return False
        self._nodes.append(node)
        self._grammar.step(token)
        return True

    def _go_on(self) -> bool:
        grammar = self._grammar
        while True:
            row = 1 + self._node
            token = self._sampled[row]
            decided = row in self._under_mask or not grammar.has_begun
            if not decided and (self._masks_first or not grammar.allows(token)):
                self._strayed |= not self._masks_first
                return True
            if token == NO_TOKEN and self._masks_first and self.may_be_cut and row not in self._under_mask:
                self.cut()  # in front of the grammar, and not sampled in time; the next step's root is, or says why not
                return False
            if not self._take(token):
                return False

    def _settle(self, rows: Sequence[MaskedRow], tokens: Sequence[int]) -> bool:
        for row, token in zip(rows, tokens, strict=True):
            if row.row != self._first_row + 1 + self._node:
                break  # another token than that of this row's path was chosen
            if not self._take(token):
                return False
        return self._go_on()

    def _due(self) -> list[MaskedRow]:
        words, only = self._allowed(self._node)
        if only is not None:
            self._take(only)
            return []
        rows = [self._masked_row(self._node, self._tokens, words)]
        if self._masks_first and self._grammar.may_draft:
            with self._grammar.asked_for_drafts():
                self._add_guesses(rows)
        return rows

    def _add_guesses(self, rows: list[MaskedRow]) -> None:
        grammar, length, node, tokens = self._grammar, self._grammar.length, self._node, list(self._tokens)
        try:
            while True:
                token = self._sampled[1 + node]
                child = child_of(self.item.tree, node, token)
                if child is None or 1 + child not in self._sampled or not AllowedTokens(rows[-1].words).has(token):
                    return
                if grammar.ends_output(token):
                    return
                grammar.step(token)
                node = child
                tokens.append(token)
                words, only = self._allowed(node)
                if only is not None:
                    return
                rows.append(self._masked_row(node, tokens, words))
        except GrammarFailure:
            return  # which ends the path once it comes there
        finally:
            grammar.go_back(length)

    def _allowed(self, node: int) -> AllowedTokens:
        """Return what may come behind a node, to which the grammar has followed the path."""
        return self._masks.get(1 + node) or self._grammar.allowed()

    def _masked_row(self, node: int, tokens: Sequence[int], words: Words) -> MaskedRow:
        return MaskedRow(self.item, self._first_row + 1 + node, self.item.base - 1 + len(tokens), tuple(tokens), words)

    def _guarded(self, work: Callable[[], R]) -> R | None:
        """A failure of the grammar ends the path without a token, and touches no other request."""
        try:
            return work()
        except GrammarFailure as failure:
            self._failure = str(failure)
        except Exception:  # noqa: BLE001 - a step is for other requests, too
            _log.exception("a grammar could not be asked")
            self._failure = "the grammar of this request could not be asked"
        self._tokens.append(NO_TOKEN)
        return None


def decide(
    paths: Sequence[ConstrainedPath],
    sample_masked: SampleMasked,
    seconds: GrammarSeconds,
    is_worth: Callable[[int], bool] = bool,
    together: Together | None = None,
) -> list[VerifyResult]:
    """Walk all paths to their ends; rows that need masks are sampled together. Counts what that takes in `seconds`.

    together: masks that several paths lack are computed so.
    Where only paths wait that may be cut, and so many are not worth it to sample again, they are: their next tokens
    come with the next step.
    """
    began, masks = time.perf_counter(), 0.0
    waiting = [path for path in paths if path.begin()]
    while waiting:
        if all(path.may_be_cut for path in waiting) and not is_worth(len(waiting)):
            for path in waiting:
                path.cut()
            break
        asked = time.perf_counter()
        if together is not None:
            _give_masks(waiting, together)
        due = [(path, rows) for path in waiting if (rows := path.due())]
        tokens = iter(sample_masked([*chain.from_iterable(rows for _, rows in due)]) if due else ())
        masks += time.perf_counter() - asked
        waiting = [path for path, rows in due if path.settle(rows, [next(tokens) for _ in rows])]
    results = [path.result() for path in paths]
    seconds.masks += masks
    seconds.checks += time.perf_counter() - began - masks
    return results


def _give_masks(paths: Sequence[ConstrainedPath], together: Together) -> None:
    """Compute masks that paths lack; who gets none asks for it, and learns why."""
    lacking = [(path, grammar) for path in paths if (grammar := path.lacking) is not None]
    if len(lacking) < 2:
        return
    for (path, _), allowed in zip(lacking, together.allowed([grammar for _, grammar in lacking]), strict=True):
        if allowed is not None:
            path.give(allowed)
