"""Whether proposers read the states they were trained on.

A head that reads the stream one layer too early or too late raises no error: its guesses are worse, and nothing else
shows it. So before the first request the target reads a few short texts, and the proposer guesses each next token from
the states at its boundaries, and from those one below and one above. A shift that is clearly better is warned of.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from draft_service.proposers.base import CPU, DraftRequest, Opening, Proposer, Sampling
from draft_service.proposers.hidden_states import bfloat16_copy
from slipstream.rpc.errors import FailedPreconditionError

if TYPE_CHECKING:
    from draft_service.layer_check.reference_states import TargetText

_log = logging.getLogger(__name__)

SHIFTS = (0, -1, 1)
SECONDS = 30.0
"""For the texts and the guesses of all proposers of one target."""
GPU_SECONDS = 10.0
"""The same where all compute on a GPU, as does the target: its start is over by then, and nobody drafts before."""
LEAST_GUESSES = 40
"""Fewer tell nothing."""
LEAST_SHARE = 0.1
"""Guesses that are right as seldom as this, whatever is read, tell nothing either."""
SIGMAS, MARGIN = 3.0, 0.05
"""By how much a shift has to be better: of the guesses that only one of the two got right, and of all guesses."""
FIRST_SESSION = 1 << 62
"""Session numbers of the check; those of requests are counted from 1."""

_GREEDY = Sampling(temperature=0.0)
Right = npt.NDArray[np.bool_]
"""Of each guess, whether it was the target's likeliest token."""


def check_boundaries(proposers: Iterable[Proposer], max_bytes: int, target: Path | None = None) -> None:
    """Log what the guesses of each proposer say that reads states. Raises nothing.

    For those that were `trained_on_states` and have no `target_folder` that is `target`. Proposers without any are left
    out, and so are targets with more than `max_bytes` of weights. To be called before a worker owns the proposers.
    Takes the time to read the target's weights once, and the memory of one of its layers.
    """
    for check in begun_checks(proposers, max_bytes, target):
        check()


def begun_checks(proposers: Iterable[Proposer], max_bytes: int, target: Path | None = None) -> list[Callable[[], None]]:
    """Bind the proposers to their targets; what is left of `check_boundaries` is to call each of these, on any thread.

    What proposers take of a device's memory they have then.
    """
    known: dict[Path, list[Proposer]] = {}
    for proposer in proposers:
        folder = proposer.target_folder or (target if proposer.trained_on_states else None)
        if folder is not None:
            known.setdefault(folder, []).append(proposer)
    numbers = count(FIRST_SESSION)
    checks: list[Callable[[], None]] = []
    for folder, own in known.items():
        names = ", ".join(proposer.name for proposer in own)
        with _passed_over(names):
            if readers := _bound(folder, own):
                checks.append(partial(_check, folder, readers, numbers, max_bytes, names))
    return checks


def _bound(folder: Path, proposers: Iterable[Proposer]) -> list[Proposer]:
    """Those that read states of the target in a folder, once they know of it."""
    from draft_service.layer_check.reference_states import facts_of  # brings torch

    facts, readers = facts_of(folder), []
    for proposer in proposers:
        with _passed_over(proposer.name):
            proposer.bind(facts)
            readers += [proposer] if proposer.feature_boundaries else []
    return readers


def _check(folder: Path, readers: Sequence[Proposer], numbers: Iterator[int], max_bytes: int, names: str) -> None:
    from draft_service.layer_check.reference_states import read_texts

    seconds = SECONDS if any(proposer.state_device == CPU for proposer in readers) else GPU_SECONDS
    until = time.monotonic() + seconds

    def going_on() -> bool:
        return time.monotonic() < until

    with _passed_over(names):
        text = read_texts(folder, max_bytes, seconds)
        for proposer in readers:
            with _passed_over(proposer.name):
                _report(proposer, first_guesses(proposer, text, numbers, going_on))


@contextmanager
def _passed_over(names: str) -> Iterator[None]:
    """What goes wrong is logged and no reason not to serve."""
    try:
        yield
    except FailedPreconditionError as error:
        _log.info("boundaries of %s are not checked: %s", names, error)
    except Exception:  # noqa: BLE001 (a third party's code; what is wrong with it shows when it drafts)
        _log.exception("boundaries of %s could not be checked", names)


def first_guesses(
    proposer: Proposer, text: TargetText, numbers: Iterator[int], going_on: Callable[[], bool]
) -> dict[int, Right]:
    """For each shift of the boundaries that the target has: which first guesses after a token of a text were right.

    `numbers` yields numbers of sessions. Ends early where `going_on` says so.
    """
    texts, length = text.tokens.shape
    highest = text.states.shape[2] - 1
    shifted = {shift: [boundary + shift for boundary in proposer.feature_boundaries] for shift in SHIFTS}
    shifted = {shift: each for shift, each in shifted.items() if min(each) >= 0 and max(each) <= highest}
    sessions = {shift: [next(numbers) for _ in range(texts)] for shift in shifted}
    requests = [DraftRequest(number, 2, 1) for own in sessions.values() for number in own]
    right: list[npt.NDArray[np.bool_]] = []
    for end in range(2, length + 1):
        if right and not going_on():
            break
        for shift, own in sessions.items():
            states = bfloat16_copy(text.columns(end - 2, shifted[shift]))
            for line, number in enumerate(own):
                if end == 2:
                    proposer.open(number, Opening(text.tokens[line, :2].tolist(), 1, _GREEDY))
                else:
                    proposer.commit(number, [int(text.tokens[line, end - 1])])
                proposer.take_features(number, end - 2, states[line : line + 1].clone())
        guesses = [tree.token_ids[0] if tree else -1 for tree in proposer.propose(requests)]
        right.append(np.array(guesses).reshape(len(sessions), texts) == text.likeliest[:, end - 1])
    for request in requests:
        proposer.close(request.session)
    return {shift: np.array([each[row] for each in right]).flatten() for row, shift in enumerate(sessions)}


def better_shift(right: Mapping[int, Right]) -> int:
    """The shift whose guesses are clearly better than those without one; 0 if none is.

    McNemar's test: of the guesses that one of two gets right and the other wrong, half would fall to each by chance.
    """
    best = max(right, key=lambda shift: int(right[shift].sum()))
    gained = int((right[best] & ~right[0]).sum())
    lost = int((right[0] & ~right[best]).sum())
    clear = gained - lost >= max(SIGMAS * sqrt(gained + lost), MARGIN * len(right[0]))
    return best if clear else 0


def _report(proposer: Proposer, right: Mapping[int, Right]) -> None:
    total = len(right[0])
    shares = ", ".join(f"{int(each.sum())} shifted by {shift:+d}" for shift, each in right.items() if shift)
    figures = f"{int(right[0].sum())} of {total} first guesses are right, {shares or 'no shift is possible'}"
    own = proposer.feature_boundaries
    best = better_shift(right)
    if total < LEAST_GUESSES:
        _log.info("boundaries of %s are not checked: %d guesses tell nothing", proposer.name, total)
    elif max(int(each.sum()) for each in right.values()) < LEAST_SHARE * total:
        _log.info("boundaries of %s: nothing can be told, %s", proposer.name, figures)
    elif best:
        _log.warning(
            "%s reads boundaries %s, but seems made for %s: %s. Try boundaries=%s",
            proposer.name,
            _joined(own),
            _joined([each + best for each in own]),
            figures,
            _joined([each + best for each in own]),
        )
    else:
        _log.info("boundaries %s of %s: no shift is clearly better, %s", _joined(own), proposer.name, figures)


def _joined(boundaries: Iterable[int]) -> str:
    return "-".join(map(str, boundaries))
