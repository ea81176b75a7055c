"""What is said of all answers to one load: times, rates, how many were within bounds, tokens second by second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.lib.percentiles import percentile
from benchmarks.serving.answer import Answer
from benchmarks.serving.crowd import Played


@dataclass(frozen=True, slots=True)
class Bounds:
    """Within what an answer counts as good: milliseconds to the first token, and for each token after it."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def given(self) -> bool:
        """Whether there are any."""
        return self.ttft_ms is not None or self.tpot_ms is not None

    def hold(self, answer: Answer) -> bool:
        """Whether a whole answer is within them."""
        first = self.ttft_ms is None or 1e3 * answer.ttft <= self.ttft_ms
        tpot = answer.tpot
        return first and (self.tpot_ms is None or tpot is None or 1e3 * tpot <= self.tpot_ms)


def measures(played: Played, bounds: Bounds, seconds: float | None = None) -> dict[str, Any]:
    """Figures of a load; what there is nothing to say of is None. Times in milliseconds.

    Rates count from the begin to the last token of a whole answer. `seconds`: with the tokens of each second of so many
    (`tokens_by_second`), and rates over just these, not over the end of the last answers.
    """
    whole = [answer for answer in played.answers if answer.whole]
    span = max((answer.times[-1] for answer in whole), default=played.begin) - played.begin
    by_second = None if seconds is None else tokens_by_second(played, seconds)
    tokens = sum(answer.tokens for answer in whole) if by_second is None else sum(by_second)
    time = span if seconds is None else seconds
    good = [answer for answer in whole if bounds.hold(answer)]
    tpot = [1e3 * each for answer in whole if (each := answer.tpot) is not None]
    median = percentile(tpot, 0.5)
    return {
        "answers": len(whole),
        "failures": dict(Counter(_kind(answer.failure) for answer in played.answers if not answer.whole)),
        "seconds": span,
        "tokens": tokens,
        "tokens_per_second": _ratio(tokens, time),
        "answers_per_second": _ratio(len(whole), span),
        **_times("ttft_ms", [1e3 * answer.ttft for answer in whole]),
        **_times("tpot_ms", tpot),
        **_times("itl_ms", [1e3 * gap for answer in whole for gap in message_gaps(answer)]),
        "tokens_per_second_a_user": _ratio(1e3, median or 0.0),
        "tokens_a_message": _ratio(sum(a.tokens for a in whole), sum(len(a.times) for a in whole)),
        "tokens_a_step": _tokens_a_step(whole),
        "accepted": _ratio(sum(a.accepted for a in whole), sum(a.drafted for a in whole)),
        "good_share": _ratio(len(good), len(played.answers)) if bounds.given else None,
        "goodput": _ratio(sum(answer.tokens for answer in good), span) if bounds.given else None,
        "sent_late_ms_p99": percentile([1e3 * (a.sent - a.due) for a in played.answers], 0.99),
        "tokens_by_second": by_second,
    }


def message_gaps(answer: Answer) -> list[float]:
    """Seconds between messages that follow one another: the inter-token latency, as clients see it."""
    return [after - before for before, after in pairwise(answer.times)]


def tokens_by_second(played: Played, seconds: float) -> list[float]:
    """Tokens that came within each second from the begin, of failed answers too; what came later is left out."""
    found = [0.0] * max(1, int(seconds))
    for answer in played.answers:
        for at, count in zip(answer.times, answer.counts, strict=True):
            second = int(at - played.begin)
            if second < len(found):
                found[second] += count
    return found


def least_ratio(tokens: Sequence[float], plain: Sequence[float]) -> float | None:
    """The worst second of a ramp, as a part of what plain decoding made in the same; None without one to compare."""
    ratios = [own / other for own, other in zip(tokens, plain, strict=False) if other > 0]
    return min(ratios, default=None)


def _times(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {f"{name}_p50": percentile(values, 0.5), f"{name}_p99": percentile(values, 0.99)}


def _tokens_a_step(whole: Sequence[Answer]) -> float | None:
    """Tokens that a verify step yields after the one that ends the prompt, which can hold no tree."""
    told = [answer for answer in whole if answer.verify_steps > 1]
    return _ratio(sum(answer.tokens - 1 for answer in told), sum(answer.verify_steps - 1 for answer in told))


def _ratio(amount: float, base: float) -> float | None:
    return amount / base if base > 0 else None


def _kind(failure: str) -> str:
    """What failures are counted by: a status without what was said, else all of it."""
    return failure.partition(":")[0] if failure.startswith("HTTP ") else failure or "no token"
