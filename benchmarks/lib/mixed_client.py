"""A client of both public APIs that tells of each request what was answered, when, and how it failed if it did."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Self

import httpx

from benchmarks.lib.request_mix import Manner, Question, http_body
from slipstream import AsyncClient, SpeculationOptions
from slipstream.rpc.errors import SlipstreamError, codes_of

CONNECTION, SILENT, MALFORMED = "CONNECTION", "SILENT", "MALFORMED"
"""Codes beside those of gRPC: a connection broke, nothing came for as long as was waited, an answer without an end."""
PART_SECONDS = 0.7
"""Between two parts of a body."""
SLOW_SECONDS = 0.1
"""Between two reads of a slow reader."""
MOST_EVENTS_READ = 12
"""After at most so many events a client leaves that does."""
_KINDS = [codes_of(kind("")) for kind in SlipstreamError.__subclasses__()]
_BY_STATUS = {codes.http: codes.status.name for codes in _KINDS}
_BY_TYPE = {codes.openai_type: codes.status.name for codes in _KINDS}


@dataclass(slots=True)
class Choice:
    """What one choice of an answer says; equal for equal answers, however they were asked for."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    end: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that did not come whole. `code` is a gRPC status by name, or one of this module's."""

    code: str
    message: str
    retry_after: float | None = None
    in_stream: bool = False
    """After the answer had begun, where HTTP has no header for Retry-After."""


@dataclass(slots=True)
class ClientOutcome:
    """One request. Times are time.perf_counter(); `tokens[i]` of all choices came at `arrivals[i]`.

    `choices` are complete if there is no failure and the client did not leave.
    """

    question: Question
    manner: Manner
    started: float
    ended: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    failure: Failure | None = None

    @property
    def answered(self) -> bool:
        """Whether it has its whole answer."""
        return self.failure is None and self.manner.expects_answer

    @property
    def total(self) -> int:
        """Tokens that came."""
        return sum(self.tokens)

    def arrive(self, tokens: int) -> None:
        """Note that so many tokens have come."""
        if tokens:
            self.arrivals.append(time.perf_counter())
            self.tokens.append(tokens)


class MixedClient:
    """Asks one server. Use as a context manager; nothing is asked of other hosts than the server's."""

    def __init__(self, http: str, grpc: str, draw: Random) -> None:
        self._draw = draw
        self._grpc = AsyncClient(grpc)
        self._web = httpx.AsyncClient(
            base_url=f"{http}/v1/",
            timeout=httpx.Timeout(None),  # `ask` has a limit of its own
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
        )
        self._model = ""

    async def __aenter__(self) -> Self:
        reply = await self._web.get("models", timeout=60.0)
        self._model = reply.raise_for_status().json()["data"][0]["id"]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._web.aclose()
        await self._grpc.close()

    async def ask(self, question: Question, manner: Manner, patience: float) -> ClientOutcome:
        """Put a question. A client gives up once nothing has come for `patience` seconds, which counts as SILENT.

        Of an answer that is not streamed nothing comes until it is whole.
        """
        outcome = ClientOutcome(question, manner, time.perf_counter())
        put = self._call if question.api == "grpc" else self._stream if manner.streamed else self._post
        try:
            async with asyncio.timeout(patience) as limit:
                await put(outcome, _Patience(limit, patience))
        except TimeoutError:
            outcome.failure = Failure(SILENT, f"nothing for {patience:g} s", in_stream=bool(outcome.arrivals))
        except SlipstreamError as error:
            code = codes_of(error).status.name
            outcome.failure = Failure(code, error.message, error.retry_after, bool(outcome.arrivals))
        except httpx.HTTPError as error:
            outcome.failure = Failure(CONNECTION, repr(error), in_stream=bool(outcome.arrivals))
        except _CutOffError:
            pass
        except _AnswerError as error:
            outcome.failure = error.failure
        outcome.ended = time.perf_counter()
        return outcome

    async def _call(self, outcome: ClientOutcome, patience: _Patience) -> None:
        question, manner = outcome.question, outcome.manner
        options: dict[str, Any] = dict(question.options)
        if manner.speculation is not None:
            options["speculation"] = SpeculationOptions(**manner.speculation)
        choice = Choice()
        async with self._grpc.stream(question.text, **options, stop=question.stop) as events:
            count = 0
            async for event in events:
                patience.renew()
                outcome.arrive(len(event.token_ids))
                choice.text += event.text
                choice.token_ids += event.token_ids
                if event.logprobs:
                    choice.logprobs.setdefault("positions", []).extend(event.logprobs)
                if event.finish_reason:
                    choice.end = event.finish_reason, event.stop_string, event.stop_token_id
                count += 1
                if await self._stop_reading(manner, count):
                    return
        if not choice.end:
            raise _AnswerError(Failure(MALFORMED, "no finish reason", in_stream=True))
        outcome.choices = [choice]

    async def _post(self, outcome: ClientOutcome, patience: _Patience) -> None:
        async with self._request(outcome) as reply:
            body = json.loads(await reply.aread())
            patience.renew()
        for entry in sorted(body["choices"], key=lambda each: int(each["index"])):
            text = entry["message"]["content"] if "message" in entry else entry["text"]
            end = entry["finish_reason"], entry["stop_reason"]
            outcome.choices.append(Choice(text or "", entry["token_ids"], _lists(entry["logprobs"]), end))
        outcome.arrive(sum(len(choice.token_ids) for choice in outcome.choices))

    async def _stream(self, outcome: ClientOutcome, patience: _Patience) -> None:
        choices = [Choice() for _ in range(outcome.question.n)]
        done, count = False, 0
        async with self._request(outcome) as reply:
            async for line in reply.aiter_lines():
                patience.renew()
                if not line.startswith("data: "):
                    continue
                data = line.removeprefix("data: ")
                done = data == "[DONE]"
                if not done:
                    outcome.arrive(_add(choices, json.loads(data)))
                count += 1
                if await self._stop_reading(outcome.manner, count):
                    return
        if not done or not all(choice.end for choice in choices):
            raise _AnswerError(Failure(MALFORMED, "the stream ended without its end", in_stream=True))
        outcome.choices = choices

    @asynccontextmanager
    async def _request(self, outcome: ClientOutcome) -> AsyncIterator[httpx.Response]:
        """The reply to a request, whose connection is closed if it was not read whole."""
        question, manner = outcome.question, outcome.manner
        content: bytes | AsyncIterator[bytes] = json.dumps(http_body(question, manner, self._model)).encode()
        if isinstance(content, bytes) and manner.reading in ("in two parts", "cut off"):
            content = _parts(content, whole=manner.reading == "in two parts")
        async with self._web.stream("POST", question.api, content=content, headers=_JSON) as reply:
            if reply.status_code != 200:
                raise _AnswerError(_failure(reply, await reply.aread()))
            yield reply

    async def _stop_reading(self, manner: Manner, count: int) -> bool:
        """Whether the client leaves after so many events; one that reads slowly waits."""
        if manner.reading == "slowly":
            await asyncio.sleep(SLOW_SECONDS * self._draw.random())
        return manner.reading == "leaves" and self._draw.randrange(MOST_EVENTS_READ) < count


_JSON = {"content-type": "application/json"}


class _Patience:
    """Ends the wait for an answer once nothing has come for so many seconds."""

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit, self._seconds = limit, seconds
        self._clock = asyncio.get_running_loop()

    def renew(self) -> None:
        """Something has come."""
        self._limit.reschedule(self._clock.time() + self._seconds)


class _AnswerError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _CutOffError(Exception):
    """The client ends its body too early, as it was to."""


async def _parts(body: bytes, *, whole: bool) -> AsyncIterator[bytes]:
    middle = len(body) // 2
    yield body[:middle]
    await asyncio.sleep(PART_SECONDS)
    if not whole:
        raise _CutOffError
    yield body[middle:]


def _failure(reply: httpx.Response, body: bytes) -> Failure:
    """What an answer with another status than 200 says."""
    after = reply.headers.get("retry-after")
    code = _BY_STATUS.get(reply.status_code, f"HTTP {reply.status_code}")
    return Failure(code, body.decode(errors="replace")[:300], None if after is None else float(after))


def _add(choices: list[Choice], event: Mapping[str, Any]) -> int:
    """Take an event of a stream into the choices; how many tokens it brought."""
    if "error" in event:
        error = event["error"]
        code = _BY_TYPE.get(error["type"], str(error["type"]))
        raise _AnswerError(Failure(code, str(error["message"]), in_stream=True))
    tokens = 0
    for part in event["choices"]:
        choice = choices[part["index"]]
        choice.text += (part["delta"].get("content") or "") if "delta" in part else part["text"]
        ids = part.get("token_ids") or []
        choice.token_ids += ids
        tokens += len(ids)
        for name, values in _lists(part["logprobs"]).items():
            choice.logprobs.setdefault(name, []).extend(values)
        if part["finish_reason"] is not None:
            choice.end = part["finish_reason"], part["stop_reason"]
    return tokens


def _lists(logprobs: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """The lists of a choice's logprobs by name, those left out that are null."""
    return {name: list(values) for name, values in (logprobs or {}).items() if values is not None}
