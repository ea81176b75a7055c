"""Rows handed from one process to another on a device: data first, then a sequence word, waited for with a bound.

Who publishes writes its rows, and with the last of its programs a word. Who takes waits for the word by the device's
clock, in one program of one warp, as others want the multiprocessors meanwhile; then it copies the rows, and uses that
copy alone. Of trees the copy is checked, by the rules of `TokenTree.validate`: the writer may be anybody, and may write
while it is read.

Each row is described by a line of `table`, int32 [rows, TABLE]; the columns are named below.
"""

from __future__ import annotations

import time

import torch
import triton
import triton.language as tl

from slipstream_kernels.device_queue import HEADER_WORDS, RESULT_WORDS, TREE_WORDS
from slipstream_kernels.ops.gpu.draft_trees import COUNT, LOG_PROBS, PARENTS, TREE_WIDTH
from slipstream_kernels.ops.gpu.launch import INTERPRETED, launch, wait_for_previous
from slipstream_kernels.token_tree import MAX_ROWS, InvalidTreeError, TokenTree

TABLE = 16
SOURCE, PLACE, HEADER, NODES, DEPTH = 0, 1, 2, 8, 9
"""Columns of `table`: the row that is published, and where to; the first of the 5 words of the header, which are the
number, slot, generation, length and root; most nodes and levels of a tree. The others are unused."""
HEADED = 5
"""Words of a header that are compared."""
STATE = PARENTS + MAX_ROWS - 1
"""Where a taken tree says what became of it, a word that no parent has: one of the next."""
NO_WORD, TAKEN, MALFORMED, NOT_MADE = 0, 1, 2, 3
"""The sequence word did not come in time; the tree is there; it breaks a rule; it was made for something else."""

_TICK = tl.constexpr(INTERPRETED)
_LOOK_NS = 1000
"""What the interpreter, which has no clock, takes each look for."""
_NUMBERS = ["number", "limit", "vocab", "rows"]


@triton.jit
def _clock() -> tl.tensor:
    """Nanoseconds of the device, the same for all threads."""
    lanes = tl.arange(0, 32)
    now = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l,r", [lanes], dtype=tl.int64, is_pure=False, pack=1)
    return tl.max(now, axis=0)


@triton.jit(do_not_specialize=_NUMBERS)
def _await(word: tl.tensor, number: int, limit: int, there: tl.tensor, LOOK: tl.constexpr) -> None:
    """One program: whether the word has the number within `limit` nanoseconds; then what came before it is visible."""
    wait_for_previous()
    seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    passed = tl.zeros((1,), tl.int64).sum(axis=0)
    if _TICK:
        while (seen != number) & (passed < limit):
            passed += LOOK
            seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    else:
        begun = _clock()
        while (seen != number) & (passed < limit):
            seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
            passed = _clock() - begun
    tl.store(there, (seen == number).to(tl.int32))


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=["source"])
def _publish(
    source: tl.tensor,
    table: tl.tensor,
    target: tl.tensor,
    counter: tl.tensor,
    word: tl.tensor,
    number: int,
    rows: int,
    TABLE: tl.constexpr,
    PLACE: tl.constexpr,
    HEADER: tl.constexpr,
    HEADED: tl.constexpr,
    OFFSET: tl.constexpr,
    SOURCE_WORDS: tl.constexpr,
    TARGET_WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One row a program; the program that comes last writes the word. With an OFFSET rows have a header in front."""
    wait_for_previous()
    row = tl.program_id(0)
    if row < rows:
        line = table + row * TABLE
        at = tl.load(
            source + tl.load(line).to(tl.int64) * SOURCE_WORDS + tl.arange(0, WIDTH),
            mask=tl.arange(0, WIDTH) < SOURCE_WORDS,
        )
        first = target + tl.load(line + PLACE).to(tl.int64) * TARGET_WORDS
        tl.store(first + OFFSET + tl.arange(0, WIDTH), at, mask=tl.arange(0, WIDTH) < SOURCE_WORDS)
        if OFFSET > 0:
            head = tl.arange(0, 8)
            tl.store(first + head, tl.load(line + HEADER + head, mask=head < HEADED), mask=head < HEADED)
    tl.debug_barrier()
    before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    if before == tl.num_programs(0) - 1:
        tl.atomic_xchg(counter, 0, sem="relaxed", scope="gpu")
        tl.atomic_xchg(word, number, sem="release", scope="sys")


@triton.jit(do_not_specialize=_NUMBERS)
def _take_outcomes(
    outcomes: tl.tensor,
    word: tl.tensor,
    number: int,
    awaited: tl.tensor,
    results: tl.tensor,
    came: tl.tensor,
    WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One row a program."""
    wait_for_previous()
    row = tl.program_id(0)
    there = tl.load(awaited) != 0
    index = tl.arange(0, WIDTH)
    inside = index < WORDS
    values = tl.load(outcomes + row * WORDS + index, mask=inside & there, other=0, volatile=True)
    tl.debug_barrier()
    same = tl.atomic_add(word, 0, sem="acq_rel", scope="sys") == number  # else the next pass but one is being written
    whole = there & same
    tl.store(results + row * WORDS + index, tl.where(whole, values, 0), mask=inside)
    tl.store(came + row, whole.to(tl.int32))


@triton.jit(do_not_specialize=_NUMBERS)
def _take_trees(
    rows: tl.tensor,
    awaited: tl.tensor,
    table: tl.tensor,
    vocab: int,
    trees: tl.tensor,
    TABLE: tl.constexpr,
    HEADER: tl.constexpr,
    HEADED: tl.constexpr,
    NODES: tl.constexpr,
    DEPTH: tl.constexpr,
    OFFSET: tl.constexpr,
    ROW: tl.constexpr,
    TREE: tl.constexpr,
    WIDTH: tl.constexpr,
    COUNT: tl.constexpr,
    PARENTS: tl.constexpr,
    LOG_PROBS: tl.constexpr,
    STATE: tl.constexpr,
) -> None:
    """One tree a program. Every word is loaded once, and what is checked is what was loaded."""
    wait_for_previous()
    row = tl.program_id(0)
    there = tl.load(awaited) != 0
    line = table + row * TABLE
    source = rows + row * ROW
    head = tl.arange(0, 32)  # a word a thread: two threads that load the same one might see different ones
    found = tl.load(source + head, mask=(head < HEADED) & there, other=0, volatile=True)
    wanted = tl.load(line + HEADER + head, mask=head < HEADED, other=0)
    fits = there & (tl.sum((found != wanted).to(tl.int32), axis=0) == 0)

    index = tl.arange(0, WIDTH)
    first = source + OFFSET
    count = tl.max(tl.load(first + index, mask=(index == COUNT) & fits, other=-2147483648, volatile=True), axis=0)
    live = (index < count) & (index < COUNT) & fits
    token = tl.load(first + index, mask=live, other=0, volatile=True)
    parent = tl.load(first + PARENTS + index, mask=live, other=-1, volatile=True)
    logs = tl.load(first + LOG_PROBS + index, mask=live, other=0, volatile=True)
    ordered = (parent >= -1) & (parent < index)
    sound = ordered & (token >= 0) & (token < vocab) & ((logs & 0x7F800000) != 0x7F800000)
    wrong = tl.sum((live & ~sound).to(tl.int32), axis=0)

    tree = trees + row * TREE
    above = tl.where(ordered, parent, -1)
    tl.store(tree + PARENTS + index, above, mask=index < COUNT)
    tl.debug_barrier()
    depth = tl.full((WIDTH,), 1, tl.int32)
    while tl.max(above, axis=0) >= 0:
        depth += (above >= 0).to(tl.int32)
        above = tl.load(tree + PARENTS + above, mask=above >= 0, other=-1)
    deepest = tl.max(tl.where(live, depth, 0), axis=0)
    most = tl.minimum(tl.load(line + NODES), COUNT)
    legal = (count >= 0) & (count <= most) & (wrong == 0) & (deepest <= tl.load(line + DEPTH))
    taken = fits & legal
    tl.store(tree + index, tl.where(taken, token, 0), mask=index < COUNT)
    tl.store(tree + LOG_PROBS + index, logs, mask=index < COUNT)
    tl.store(tree + COUNT, tl.where(taken, count, 0))
    state = tl.where(there, tl.where(fits, tl.where(legal, 1, 2), 3), 0)
    tl.store(tree + STATE, state)


def publish_outcomes(
    results: torch.Tensor,
    table: torch.Tensor,
    outcomes: torch.Tensor,
    counter: torch.Tensor,
    word: torch.Tensor,
    number: int,
) -> None:
    """Copy row SOURCE of `results`, int32 [any, RESULT_WORDS], to row PLACE of `outcomes`; then set the word.

    word, counter: int32 [1]; the counter is 0 before and after.
    """
    _launch_publish(results, table, outcomes, counter, word, number, RESULT_WORDS, RESULT_WORDS, 0)


def publish_trees(
    trees: torch.Tensor, table: torch.Tensor, rows: torch.Tensor, counter: torch.Tensor, word: torch.Tensor, number: int
) -> None:
    """Copy row SOURCE of `trees`, int32 [any, TREE_WIDTH], to row PLACE of `rows` behind a header; then set the word.

    Other arguments are as in `publish_outcomes`.
    """
    _launch_publish(trees, table, rows, counter, word, number, TREE_WIDTH, TREE_WORDS, HEADER_WORDS)


def await_word(word: torch.Tensor, number: int, limit: int, there: torch.Tensor) -> None:
    """Wait up to `limit` nanoseconds, below 2^31, until the word has the number; there: int32 [1], whether it has."""
    launch(_await, (1,), word, number, limit, there, warps=1, LOOK=_LOOK_NS)


def take_outcomes(
    outcomes: torch.Tensor,
    word: torch.Tensor,
    number: int,
    there: torch.Tensor,
    results: torch.Tensor,
    came: torch.Tensor,
) -> None:
    """Behind `await_word`: copy the first rows of `outcomes` where the word came.

    results: int32 [n, RESULT_WORDS] gets them, or zeros. came: int32 [n], whether a row was there and stayed.
    """
    launch(
        _take_outcomes,
        (len(results),),
        outcomes,
        word,
        number,
        there,
        results,
        came,
        warps=1,
        WORDS=RESULT_WORDS,
        WIDTH=triton.next_power_of_2(RESULT_WORDS),
    )


def take_trees(rows: torch.Tensor, there: torch.Tensor, table: torch.Tensor, vocab: int, trees: torch.Tensor) -> None:
    """Behind `await_word`: copy and check the trees, one for each line of `table`, where the word came.

    rows: int32 [any, TREE_WORDS], whose headers must be those of the table. trees: int32 [n, TREE_WIDTH], as
    `DraftTrees.result`, get the trees whose ids are below `vocab` and that keep to the table's limits; the others are
    empty. Word STATE of each says what became of it.
    """
    launch(
        _take_trees,
        (len(trees),),
        rows,
        there,
        table,
        vocab,
        trees,
        warps=1,
        TABLE=TABLE,
        HEADER=HEADER,
        HEADED=HEADED,
        NODES=NODES,
        DEPTH=DEPTH,
        OFFSET=HEADER_WORDS,
        ROW=TREE_WORDS,
        TREE=TREE_WIDTH,
        WIDTH=MAX_ROWS,
        COUNT=COUNT,
        PARENTS=PARENTS,
        LOG_PROBS=LOG_PROBS,
        STATE=STATE,
    )


def _launch_publish(
    source: torch.Tensor,
    table: torch.Tensor,
    target: torch.Tensor,
    counter: torch.Tensor,
    word: torch.Tensor,
    number: int,
    source_words: int,
    target_words: int,
    offset: int,
) -> None:
    rows = len(table)
    launch(
        _publish,
        (max(rows, 1),),
        source,
        table,
        target,
        counter,
        word,
        number,
        rows,
        warps=2,
        TABLE=TABLE,
        PLACE=PLACE,
        HEADER=HEADER,
        HEADED=HEADED,
        OFFSET=offset,
        SOURCE_WORDS=source_words,
        TARGET_WORDS=target_words,
        WIDTH=triton.next_power_of_2(source_words),
    )


def publish_outcomes_reference(
    results: torch.Tensor,
    table: torch.Tensor,
    outcomes: torch.Tensor,
    counter: torch.Tensor,  # noqa: ARG001  # nothing is left to other programs
    word: torch.Tensor,
    number: int,
) -> None:
    """The same in torch."""
    outcomes[table[:, PLACE].long()] = results[table[:, SOURCE].long()]
    word.fill_(number)


def publish_trees_reference(
    trees: torch.Tensor,
    table: torch.Tensor,
    rows: torch.Tensor,
    counter: torch.Tensor,  # noqa: ARG001  # as above
    word: torch.Tensor,
    number: int,
) -> None:
    """The same in torch."""
    places = table[:, PLACE].long()
    rows[places, :HEADED] = table[:, HEADER : HEADER + HEADED]
    rows[places, HEADER_WORDS : HEADER_WORDS + TREE_WIDTH] = trees[table[:, SOURCE].long()]
    word.fill_(number)


def await_word_reference(word: torch.Tensor, number: int, limit: int, there: torch.Tensor) -> None:
    """The same in torch."""
    until = time.perf_counter() + limit / 1e9
    while int(word) != number and time.perf_counter() < until:
        time.sleep(0)
    there.fill_(int(word) == number)


def take_outcomes_reference(
    outcomes: torch.Tensor,
    word: torch.Tensor,
    number: int,
    there: torch.Tensor,
    results: torch.Tensor,
    came: torch.Tensor,
) -> None:
    """The same in torch."""
    results.copy_(outcomes[: len(results)])
    whole = bool(there) and int(word) == number
    results *= whole
    came.fill_(whole)


def take_trees_reference(
    rows: torch.Tensor, there: torch.Tensor, table: torch.Tensor, vocab: int, trees: torch.Tensor
) -> None:
    """The same in torch."""
    for line, source, tree in zip(table, rows[: len(table)].clone(), trees, strict=True):
        words, state = source[HEADER_WORDS : HEADER_WORDS + TREE_WIDTH], NO_WORD
        if bool(there):
            fits = bool((source[:HEADED] == line[HEADER : HEADER + HEADED]).all())
            state = (TAKEN if _is_legal(words, line, vocab) else MALFORMED) if fits else NOT_MADE
        tree.copy_(words)
        tree[COUNT] *= state == TAKEN
        tree[STATE] = state


def _is_legal(words: torch.Tensor, line: torch.Tensor, vocab: int) -> bool:
    """Whether the host would take the tree."""
    count = int(words[COUNT])
    if not 0 <= count < MAX_ROWS:
        return False
    ids, parents = tuple(words[:count].tolist()), tuple(words[PARENTS : PARENTS + count].tolist())
    try:
        TokenTree(ids, parents).validate(vocab_size=vocab, max_nodes=int(line[NODES]), max_depth=int(line[DEPTH]))
    except InvalidTreeError:
        return False
    return bool(words[LOG_PROBS : LOG_PROBS + count].view(torch.float32).isfinite().all())
