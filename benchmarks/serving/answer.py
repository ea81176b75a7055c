"""One streamed answer: when what came, how many tokens, which, and how it failed if it did."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

DONE = b"[DONE]"
MESSAGE_SHOWN = 200
"""Characters of a failure that are kept."""


@dataclass(slots=True)
class Exchange:
    """A request and the raw events that came back. Times are time.perf_counter(), a clock that processes share.

    `due` is when the load's plan had the request sent; `failure` is empty if the response came whole.
    """

    prompt: int
    due: float
    sent: float
    events: list[tuple[float, bytes]] = field(default_factory=list)
    ended: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered. `times[i]` is when the i-th message with text or ids came, `counts[i]` its tokens.

    Without token ids `counts` shares the tokens out evenly, as messages do not say how many they carry. `token_ids` is
    None where the server gave none. Counters of speculation are 0 where the server tells of none.
    """

    prompt: int
    due: float
    sent: float
    ended: float
    failure: str = ""
    times: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    tokens: int = 0
    token_ids: tuple[int, ...] | None = None
    text: str = ""
    verify_steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def whole(self) -> bool:
        """Whether all of it came, and at least one token."""
        return not self.failure and bool(self.times)

    @property
    def ttft(self) -> float:
        """Seconds from when the request was due to the first token; of a whole answer."""
        return self.times[0] - self.due

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first message; None where no token came after."""
        later = self.tokens - self.counts[0] if self.counts else 0
        return (self.times[-1] - self.times[0]) / later if len(self.times) > 1 and later > 0 else None


class _Reading:
    """What the events of one answer say so far."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []
        self.token_ids: list[int] = []
        self.has_ids = False
        self.text = ""
        self.finished = False
        self.usage: dict[str, Any] = {}
        self.speculation: dict[str, Any] = {}
        self.failure = ""

    def take(self, at: float, event: dict[str, Any]) -> None:
        """Take in an event that came at time `at`."""
        if "error" in event:
            error = event["error"]
            self.failure = str(error.get("message") if isinstance(error, dict) else error)[:MESSAGE_SHOWN]
            return
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            ids, text = choice.get("token_ids"), choice.get("text") or ""
            self.has_ids |= ids is not None
            if ids or text:
                self.times.append(at)
                self.counts.append(len(ids or ()))
                self.token_ids += ids or ()
                self.text += text
            self.finished |= choice.get("finish_reason") is not None
            self.speculation = choice.get("speculation") or self.speculation

    def tokens(self) -> int:
        """By the ids, else by the usage, else one a message."""
        if self.has_ids:
            return len(self.token_ids)
        return int(self.usage.get("completion_tokens") or len(self.times))


def read_answer(exchange: Exchange) -> Answer:
    """The answer that an exchange holds."""
    reading, failure = _Reading(), exchange.failure
    try:
        for at, event in exchange.events:
            if event != DONE:
                reading.take(at, json.loads(event))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        failure = failure or f"no event of the OpenAI API: {error!r}"[:MESSAGE_SHOWN]
    failure = failure or reading.failure or ("" if reading.finished else "the stream ended without a finish reason")
    tokens = reading.tokens()
    told = reading.speculation or reading.usage
    return Answer(
        prompt=exchange.prompt,
        due=exchange.due,
        sent=exchange.sent,
        ended=exchange.ended,
        failure=failure,
        times=tuple(reading.times),
        counts=_counts(reading, tokens),
        tokens=tokens,
        token_ids=tuple(reading.token_ids) if reading.has_ids else None,
        text=reading.text,
        verify_steps=int(told.get("verify_steps") or 0),
        drafted=int(told.get("drafted_tokens") or 0),
        accepted=int(told.get("accepted_tokens") or 0),
    )


def _counts(reading: _Reading, tokens: int) -> tuple[float, ...]:
    if reading.has_ids:
        return tuple(reading.counts)
    return (tokens / len(reading.times),) * len(reading.times) if reading.times else ()
