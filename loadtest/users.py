"""Locust users that stream chat answers and time their tokens, one for each door of the gateway."""

from __future__ import annotations

import loadtest.cooperative  # noqa: F401  # patches what the modules below use

# isort: split
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from geventhttpclient import HTTPClient
from locust import User, task

from loadtest.measure import Answer
from loadtest.prompts import Message
from loadtest.target import LoadTarget
from slipstream.rpc.channel import open_sync_channel
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc, sampling_pb2

MILLISECONDS = 1e3
PAUSE_SECONDS = 0.5
"""What a user whose request has failed waits for: a server that is not there is asked no thousand times a second."""


@dataclass(frozen=True, slots=True)
class Asking:
    """What every user asks, and how."""

    target: LoadTarget
    conversations: Iterator[list[Message]]
    max_tokens: int
    temperature: float = 0.0
    proposer: str = ""
    speculation: bool = True
    timeout: float = 120.0
    api_key: str = field(default="", repr=False)


class StreamError(RuntimeError):
    """An answer that did not come to its proper end."""


class StreamUser(User):
    """Asks one conversation after the other. A subclass says how; locust's statistics get total, TTFT and TPOT."""

    abstract = True
    api: ClassVar[str]
    asking: ClassVar[Asking]

    @task
    def chat(self) -> None:
        """One answer, reported with its `Answer` or its error in the event's context."""
        started = time.perf_counter()
        answer: Answer | None = None
        error: Exception | None = None
        try:
            answer = self.ask(next(self.asking.conversations))
        except Exception as caught:  # noqa: BLE001  # whatever goes wrong is a failed request of the report
            error = caught
        ended = answer.last_token if answer else time.perf_counter()
        self._fire("chat", ended - started, answer.tokens if answer else 0, error, {"answer": answer})
        if error:
            time.sleep(PAUSE_SECONDS)
        if answer:
            self._fire("chat TTFT", answer.ttft, 0, None, {})
            if answer.tpot is not None:
                self._fire("chat TPOT", answer.tpot, 0, None, {})

    def ask(self, conversation: list[Message]) -> Answer:
        """Stream one answer; StreamError if it ends without a finish reason."""
        raise NotImplementedError

    def _fire(self, name: str, seconds: float, length: int, error: Exception | None, context: dict[str, Any]) -> None:
        self.environment.events.request.fire(
            request_type=self.api,
            name=name,
            response_time=seconds * MILLISECONDS,
            response_length=length,
            exception=error,
            context=context,
        )


class HttpStreamUser(StreamUser):
    """Server-sent events of /v1/chat/completions, on one kept connection."""

    api = "http"

    def on_start(self) -> None:
        """Open the connection."""
        asking = self.asking
        headers = {"Content-Type": "application/json"}
        if asking.api_key:
            headers["Authorization"] = f"Bearer {asking.api_key}"
        self._client = HTTPClient(
            asking.target.http_host,
            asking.target.http_port,
            headers=headers,
            connection_timeout=asking.timeout,
            network_timeout=asking.timeout,
        )
        with self._client.get("/v1/models") as models:
            self._model = json.loads(bytes(models.read()))["data"][0]["id"]

    def on_stop(self) -> None:
        """Close the connection."""
        self._client.close()

    def ask(self, conversation: list[Message]) -> Answer:
        """Stream one answer; the token count is that of the usage chunk."""
        body = {
            "model": self._model,
            "messages": conversation,
            "max_tokens": self.asking.max_tokens,
            "temperature": self.asking.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": {"enabled": self.asking.speculation},
        }
        if self.asking.proposer:
            body["speculation"] = {"enabled": self.asking.speculation, "proposer": self.asking.proposer}
        started = time.perf_counter()
        first = last = 0.0
        usage: dict[str, Any] | None = None
        finished = False
        with self._client.post("/v1/chat/completions", body=json.dumps(body)) as response:
            if response.status_code != 200:
                raise StreamError(f"status {response.status_code}: {bytes(response.read())[:200]!r}")
            for chunk in events(response):
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices", ()):
                    finished = finished or choice.get("finish_reason") is not None
                    if choice["delta"].get("content"):
                        last = time.perf_counter()
                        first = first or last
        if not finished or usage is None:
            raise StreamError("the stream ended without a finish reason")
        last = last or time.perf_counter()
        return Answer(started, first or last, last, usage["completion_tokens"], usage.get("verify_steps", 0))


class GrpcStreamUser(StreamUser):
    """The gateway's Generate, on one channel a user."""

    api = "grpc"

    def on_start(self) -> None:
        """Open the channel."""
        self._channel = open_sync_channel(self.asking.target.grpc_address, token=self.asking.api_key)
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def on_stop(self) -> None:
        """Close the channel."""
        self._channel.close()

    def ask(self, conversation: list[Message]) -> Answer:
        """Stream one answer; tokens are counted as they come."""
        request = gateway_pb2.GenerateRequest(
            chat=gateway_pb2.Chat(messages=[gateway_pb2.ChatMessage(**message) for message in conversation]),
            sampling=sampling_pb2.SamplingParams(
                temperature=self.asking.temperature, max_tokens=self.asking.max_tokens
            ),
            speculation=sampling_pb2.Speculation(enabled=self.asking.speculation, proposer=self.asking.proposer),
        )
        started = time.perf_counter()
        first = last = 0.0
        tokens = 0
        final: Any = None
        for reply in self._stub.Generate(request, timeout=self.asking.timeout):
            if reply.token_ids:
                last = time.perf_counter()
                first = first or last
                tokens += len(reply.token_ids)
            if reply.finish_reason:
                final = reply
        if final is None:
            raise StreamError("the stream ended without a finish reason")
        last = last or time.perf_counter()
        return Answer(started, first or last, last, tokens, final.usage.verify_steps)


def events(response: Any) -> Iterator[dict[str, Any]]:
    """The JSON documents of a stream of server-sent events, up to [DONE]."""
    while line := bytes(response.readline(b"\n")):
        data = line.strip()
        if not data.startswith(b"data:"):
            continue
        payload = data[len(b"data:") :].strip()
        if payload == b"[DONE]":
            response.read()
            return
        document = json.loads(payload)
        if "error" in document:
            raise StreamError(str(document["error"]))
        yield document
