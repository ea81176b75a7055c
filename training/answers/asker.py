"""One conversation at a time: its questions in order, each after the target's own answers to those before."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from slipstream.client import AsyncClient
from slipstream.completion import Completion, Model
from slipstream.completion import Message as ChatMessage
from slipstream.rpc.errors import (
    DeadlineExceededError,
    NotFoundError,
    ResourceExhaustedError,
    SlipstreamError,
    UnauthenticatedError,
    UnavailableError,
)
from training.answers.sequences import Message, TokenSequence, Turn, extend
from training.answers.settings import AnswerSettings
from training.prompts.records import Prompt

T = TypeVar("T")

FIRST_DELAY: Final = 0.2
LONGEST_DELAY: Final = 10.0
"""Seconds between tries; doubling from the first to the longest, give or take half."""
FIRST_CONTACT_SECONDS: Final = 10.0
"""How long the gateway may take to say what it serves."""
TOKENIZE_SECONDS: Final = 60.0
CONTEXT_FULL: Final = "the context is full"


class GatewayGoneError(RuntimeError):
    """The gateway has not answered for as long as one is willing to wait."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a conversation. `failure` says why there is no answer, `ended` why there is none to the rest."""

    key: str
    origin: str
    category: str
    sequences: tuple[TokenSequence, ...] = ()
    failure: str = ""
    ended: str = ""

    @property
    def completion_tokens(self) -> int:
        return sum(turn.completion_tokens for sequence in self.sequences for turn in sequence.turns)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "id": self.key,
            "origin": self.origin,
            "category": self.category,
            "sequences": [sequence.document() for sequence in self.sequences],
            "failure": self.failure,
            "ended": self.ended,
        }


@dataclass(slots=True)
class Asker:
    """Asks one gateway. What fails for the moment is tried again for `patience` seconds, then GatewayGoneError."""

    client: AsyncClient
    model: Model
    settings: AnswerSettings
    patience: float
    retries: Counter[str] = field(default_factory=Counter)

    async def answer(self, prompt: Prompt) -> Answered:
        """Answer the questions of a conversation in order; a refusal ends it."""
        key = prompt.key
        sequences: list[TokenSequence] = []
        messages: list[Message] = []
        ended = ""
        asked = 0
        for turn in prompt.turns:
            messages.append({"role": turn.role, "content": turn.content})
            if turn.role != "user":
                continue
            if asked == self.settings.max_turns:
                ended = f"{asked} turns"
                break
            try:
                ended = await self._ask(key, asked, messages, sequences)
            except UnauthenticatedError:
                raise
            except SlipstreamError as error:
                ended = f"{type(error).__name__.removesuffix('Error')}: {error.message}"
            if ended:
                break
            asked += 1
        failure = ended if not sequences else ""
        return Answered(key, prompt.origin, prompt.category, tuple(sequences), failure, "" if failure else ended)

    async def _ask(self, key: str, turn: int, messages: list[Message], sequences: list[TokenSequence]) -> str:
        """Ask the last question of `messages` and add the answer to both lists; says why if that cannot be."""
        chat = [ChatMessage(role=each["role"], content=each["content"]) for each in messages]
        prompt_ids = await self.retried(
            lambda: self.client.tokenize(messages=chat, model=self.settings.model, timeout=TOKENIZE_SECONDS)
        )
        room = self.model.max_context - len(prompt_ids)
        if room < 1:
            return CONTEXT_FULL
        options = self.settings.options(key, turn, room)
        completion = await self.retried(lambda: self.generate(prompt_ids, options))
        messages.append({"role": "assistant", "content": completion.text})
        facts = Turn(len(prompt_ids), len(completion.token_ids), completion.finish_reason, completion.seed)
        extend(sequences, prompt_ids, completion.token_ids, facts, messages)
        return ""

    async def generate(self, prompt_ids: list[int], options: Any) -> Completion:
        """One answer, asked for once."""
        try:
            return await self.client.generate(token_ids=prompt_ids, **options)
        except ValueError as error:
            raise UnavailableError(str(error)) from error

    async def retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, which is tried again while the gateway is full, away or slow."""
        delay, since = FIRST_DELAY, time.monotonic()
        while True:
            try:
                return await call()
            except (UnavailableError, ResourceExhaustedError, DeadlineExceededError) as error:
                if time.monotonic() - since + delay > self.patience:
                    raise GatewayGoneError(f"no answer for {self.patience:g} s: {error.message}") from error
                self.retries[type(error).__name__.removesuffix("Error")] += 1
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))
            delay = min(2 * delay, LONGEST_DELAY)


async def served_model(client: AsyncClient, name: str, patience: float) -> Model:
    """The model of that name, or the first one, at a gateway that may take `patience` seconds to be there.

    NotFoundError where there is none of that name.
    """
    first = Asker(client, Model("", 0, 0), AnswerSettings(), patience)
    models = await first.retried(client.list_models)
    found = next((model for model in models if name in ("", model.name)), None)
    if found is None:
        raise NotFoundError(f"the gateway serves no {name!r}, but {', '.join(model.name for model in models)}")
    return found
