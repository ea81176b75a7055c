"""Where the end of a text occurs in a suffix tree, and the likeliest continuation from there.

SuffixDecoding (G. Oliaro, Z. Jia, D. Campos, A. Qiao, arXiv 2411.04975, section 4). For every length m at which the end
of the text occurs, the subtree below the match is a distribution over continuations: an edge has the share of its count
among its siblings. A match of m tokens may be continued by at most `m * max_spec_factor + max_spec_offset` tokens, and
within the tree's depth. The continuation is greedy: *path* follows the most frequent child, *tree* takes the nodes of
highest path probability. Either stops where the path probability falls below `min_token_prob`. The *score* is the sum
of the path probabilities, the tokens expected to be accepted. The best score of all lengths wins, of equal scores that
of the longer match; what the request's own tree says wins over an equal score of the other.

A length is left out only where it cannot win: its bound does not exceed the best score so far, or it has exactly the
occurrences of a length with at least its limits. Lengths are visited by bound, highest first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from draft_service.proposers.jit import compiled
from draft_service.proposers.suffix.memory import (
    COUNT,
    DEPTH,
    FIELDS,
    FIRST,
    NEXT,
    RING,
    START,
    TERMINATOR,
    TOKEN,
    tree_at,
)
from draft_service.proposers.suffix.nodes import ROOT, child_of
from slipstream_kernels.jit.intrinsics import pointer_f64, pointer_i32, record_at
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

_INTEGERS = ("as_tree", "tokens", "parents", "probs", "bank", "queue", "shares", "length", "found", "winner")
_QUERY = np.dtype(
    [(name, np.int64) for name in _INTEGERS] + [(n, np.float64) for n in ("factor", "offset", "least", "score")]
)
_query_at = record_at(_QUERY)
_EDGE, _STANDS, _PARENT, _LEVEL, _LISTED = range(5)
_CANDIDATE = 5
_QUEUE = 2 * MAX_ROWS + 2


class SuffixSearch:
    """Settings of the search and room for its results; serves all trees of a thread, one call at a time."""

    __slots__ = ("_address", "_arrays", "_parents", "_probs", "_record", "_tokens")

    def __init__(self, *, as_tree: bool, factor: float, offset: float, min_prob: float) -> None:
        self._tokens, self._parents = np.zeros(2 * MAX_ROWS, np.int32), np.zeros(2 * MAX_ROWS, np.int32)
        self._probs = np.zeros(2 * MAX_ROWS)
        queue, shares = np.zeros(_QUEUE * _CANDIDATE, np.int32), np.zeros(2 * _QUEUE)
        self._arrays = (queue, shares)
        self._record: Any = np.zeros(1, _QUERY)
        self._address = int(self._record.ctypes.data)
        values: dict[str, float] = {
            "as_tree": as_tree, "factor": factor, "offset": offset, "least": min_prob,
            "tokens": self._tokens.ctypes.data, "parents": self._parents.ctypes.data,
            "probs": self._probs.ctypes.data, "queue": queue.ctypes.data, "shares": shares.ctypes.data,
        }  # fmt: skip
        for name, value in values.items():
            self._record[name] = value

    def __call__(self, local: int, shared: int, max_tokens: int, max_depth: int) -> TokenTree | None:
        """The best continuation of the text of tree `local`, in itself or in tree `shared` (addresses; 0: none).

        All text staged in `local` must have been appended: what lies behind its end is written to.

        At most `max_tokens` (1 to 63) nodes and `max_depth` levels. Path probabilities come as `log_probs`.
        """
        found = search(self._address, local, shared, max_tokens, max_depth)
        if found == 0:
            return None
        start = MAX_ROWS if found < 0 else 0
        part = slice(start, start + abs(found))
        return TokenTree(
            tuple(self._tokens[part].tolist()), tuple(self._parents[part].tolist()), tuple(self._probs[part].tolist())
        )

    @property
    def score(self) -> float:
        """Of the last result."""
        return float(self._record["score"][0])

    @property
    def match_length(self) -> int:
        """Of the last result."""
        return int(self._record["length"][0])


@compiled
def search(query: int, local: int, shared: int, max_tokens: int, max_depth: int) -> int:
    """Returns the number of nodes, negative if they lie in the second half of the arrays."""
    q, t = _query_at(query), tree_at(local)
    pointer_i32(t.text)[t.end] = TERMINATOR
    q.score, q.length, q.bank, q.found, q.winner = 0.0, 0, 0, 0, 0
    _visit(q, t, t, t.end - t.first, max_tokens, max_depth)
    if shared != 0:
        g = tree_at(shared)
        _visit(q, t, g, _longest_match(t, g), max_tokens, max_depth)
    probs = pointer_f64(q.probs)
    start = MAX_ROWS - q.bank
    for i in range(start, start + q.found):
        probs[i] = math.log(min(1.0, probs[i]))
    found: int = q.found
    return found if start == 0 else -found


@compiled
def _nodes_allowed(q: Any, length: int, max_tokens: int) -> int:
    allowed: int = min(max_tokens, math.floor(length * q.factor + q.offset + 1e-9))
    return allowed


@compiled
def _bound(q: Any, g: Any, length: int, max_tokens: int, max_depth: int) -> int:
    """No continuation of a match of this length can have a higher score: a level's probabilities sum to 1 at most.

    -1 for no length.
    """
    if length < 1:
        return -1
    bound: int = min(_nodes_allowed(q, length, max_tokens), max_depth, g.max_depth - length)
    return bound


@compiled
def _visit(q: Any, t: Any, g: Any, longest: int, max_tokens: int, max_depth: int) -> None:
    """Try the match lengths 1 to `longest` of the text of `t` in tree `g`, those of the highest bound first.

    The bound rises with the length up to a peak and falls from there.
    """
    peak = longest
    while _bound(q, g, peak - 1, max_tokens, max_depth) > _bound(q, g, peak, max_tokens, max_depth):
        peak -= 1
    below, above = peak, peak + 1
    count_below = count_above = -1
    while below >= 1 or above <= longest:
        bound_below = _bound(q, g, below, max_tokens, max_depth)
        bound_above = _bound(q, g, above, max_tokens, max_depth) if above <= longest else -1
        upward = bound_above >= bound_below
        length = above if upward else below
        if not _can_win(q, g, max(bound_below, bound_above), length):
            return
        edge = _locate(t, g, length)
        count = _occurrences(g, edge, length)
        nodes = _nodes_allowed(q, length, max_tokens)
        if upward:
            known = count == count_above and (q.as_tree == 0 or nodes == _nodes_allowed(q, length - 1, max_tokens))
            count_above = count
            above += 1
        else:
            known = count == count_below
            count_below = count
            count_above = count if length == peak and above == peak + 1 else count_above
            below -= 1
        if not known:
            _expand(q, g, edge, length, nodes, min(max_depth, g.max_depth - length))


@compiled
def _can_win(q: Any, g: Any, score: float, length: int) -> bool:
    return score > q.score or (score == q.score and score > 0 and g.text == q.winner and length > q.length)


@compiled
def _locate(t: Any, g: Any, length: int) -> int:
    """The edge of `g` on which the last `length` tokens of the text of `t` end, -1 if they do not occur."""
    start = t.end - length
    if t.text == g.text:
        return pointer_i32(g.edges)[start & (RING - 1)] if start >= g.first else -1
    context, text, nodes = pointer_i32(t.text), pointer_i32(g.text), pointer_i32(g.nodes)
    edge = ROOT
    depth = 0
    while depth < length:
        edge = child_of(g, edge, context[start + depth])
        if edge < 0:
            return edge
        at = edge * FIELDS
        bottom = min(nodes[at + DEPTH], length)
        depth += 1
        while depth < bottom:
            if text[nodes[at + START] + depth] != context[start + depth]:
                return -1
            depth += 1
    return edge


@compiled
def _longest_match(t: Any, g: Any) -> int:
    """Length of the longest end of the text of `t` that occurs in `g` and can be continued there."""
    most = min(t.end, g.max_depth - 1)
    found, missed = 0, most + 1
    step = 1
    while found + 1 < missed:
        length = min(found + step, most) if missed > most else (found + missed) // 2
        if _locate(t, g, length) >= 0:
            found = length
            step *= 2
        else:
            missed = length
    return found


@compiled
def _stopped(g: Any, edge: int, after: int) -> int:
    """Active suffixes that start at `after` or later and stand on an edge."""
    edges = pointer_i32(g.edges)
    stopped = 0
    for suffix in range(max(after, g.first), g.end):
        stopped += edges[suffix & (RING - 1)] == edge
    return stopped


@compiled
def _occurrences(g: Any, edge: int, length: int) -> int:
    """How often the match occurs. The shorter active suffixes on its edge have not come so far."""
    entered: int = pointer_i32(g.nodes)[edge * FIELDS + COUNT]
    return entered - _stopped(g, edge, g.end - length + 1)


@compiled
def _expand(q: Any, g: Any, edge: int, length: int, limit: int, levels: int) -> None:
    """Continue a match; keep the result if its score is the best."""
    tokens, parents, probs = pointer_i32(q.tokens), pointer_i32(q.parents), pointer_f64(q.probs)
    queue, shares = pointer_i32(q.queue), pointer_f64(q.shares)
    nodes = pointer_i32(g.nodes)
    made = 0
    score = 0.0
    size = _succeed(q, g, 0, edge, length, -1, 1, 1.0)
    while size > 0 and made < limit:
        best = 0
        for i in range(1, size):
            if shares[2 * i] > shares[2 * best]:
                best = i
        at = best * _CANDIDATE
        prob, share = shares[2 * best], shares[2 * best + 1]
        stands, depth, level = queue[at + _EDGE], queue[at + _STANDS], queue[at + _LEVEL]
        parent, listed = queue[at + _PARENT], queue[at + _LISTED]
        out = q.bank + made
        row = stands * FIELDS
        tokens[out] = pointer_i32(g.text)[nodes[row + START] + depth - 1]
        parents[out], probs[out] = parent, prob
        score += prob
        made += 1
        size -= 1
        shares[2 * best], shares[2 * best + 1] = shares[2 * size], shares[2 * size + 1]
        for i in range(_CANDIDATE):
            queue[at + i] = queue[size * _CANDIDATE + i]
        if level < levels:
            size = _succeed(q, g, size, stands, depth, made - 1, level + 1, prob)
        if listed and q.as_tree:
            size = _push(q, g, size, nodes[row + NEXT], depth, parent, level, share)
    if _can_win(q, g, score, length):
        q.score, q.length, q.found, q.winner = score, length, made, g.text
        q.bank = MAX_ROWS - q.bank


@compiled
def _succeed(q: Any, g: Any, size: int, edge: int, depth: int, parent: int, level: int, prob: float) -> int:
    """Queue what follows a place: the next token of its edge, or the most frequent child. Returns the queue's size."""
    nodes = pointer_i32(g.nodes)
    at = edge * FIELDS
    if depth < nodes[at + DEPTH]:
        if pointer_i32(g.text)[nodes[at + START] + depth] == TERMINATOR:
            return size
        return _enqueue(q, size, edge, depth + 1, parent, level, False, prob, prob)
    if depth == g.max_depth:
        return size
    followed = nodes[at + COUNT] - _stopped(g, edge, 0)
    return _push(q, g, size, nodes[at + FIRST], depth + 1, parent, level, prob / followed)


@compiled
def _push(q: Any, g: Any, size: int, child: int, depth: int, parent: int, level: int, share: float) -> int:
    """Queue a child, or the next of its siblings that is no end of a sequence."""
    nodes = pointer_i32(g.nodes)
    if child >= 0 and nodes[child * FIELDS + TOKEN] == TERMINATOR:
        child = nodes[child * FIELDS + NEXT]
    if child < 0:
        return size
    return _enqueue(q, size, child, depth, parent, level, True, share * nodes[child * FIELDS + COUNT], share)


@compiled
def _enqueue(
    q: Any, size: int, edge: int, depth: int, parent: int, level: int, listed: bool, prob: float, share: float
) -> int:
    if prob < q.least:
        return size
    queue, shares = pointer_i32(q.queue), pointer_f64(q.shares)
    at = size * _CANDIDATE
    queue[at + _EDGE], queue[at + _STANDS], queue[at + _PARENT] = edge, depth, parent
    queue[at + _LEVEL], queue[at + _LISTED] = level, listed
    shares[2 * size], shares[2 * size + 1] = prob, share
    return size + 1
