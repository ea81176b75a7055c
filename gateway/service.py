"""What both APIs share: admission of requests, and the life of the process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gateway.auth import ApiKeys
from gateway.config import GatewaySettings
from gateway.generation import Backend, FieldNames, Generation, Running
from gateway.limits import (
    ContextLengthError,
    check_context,
    check_name,
    check_sampling,
    check_speculation,
    check_stop,
    check_token_ids,
)
from gateway.metrics import Metrics
from gateway.request import Order, VerifyInfo
from gateway.tokenizer import Tokenizer
from gateway.verify_client import VerifyClient
from slipstream.chat_template import ChatTemplate, Message
from slipstream.rpc.errors import InvalidArgumentError, NotFoundError, UnavailableError

_LONG_TEXT: Final = 8192
"""Characters from which on tokenising is done on another thread: about a millisecond's worth."""

_LAST_WORDS_SECONDS: Final = 1.0
"""What readers get to pass on the error of a request that the drain has cut short."""

_SEED_BITS: Final = 53
"""Of a seed that the gateway draws; JSON numbers carry that many exactly."""


class UnknownModelError(NotFoundError):
    """The request names a model that is not served."""


class Gateway:
    """Turns requests of either API into generations on a verify service."""

    __slots__ = ("_backend", "_draining", "_running", "client", "keys", "metrics", "settings", "template", "tokenizer")

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.tokenizer = Tokenizer(settings.model)
        self.template = ChatTemplate.from_folder(settings.model)
        self.keys = ApiKeys.from_file(settings.api_keys_file)
        self.metrics = Metrics()
        self.client = VerifyClient(
            settings.verify,
            timeout=settings.connect_timeout,
            resume_seconds=settings.resume_seconds,
            metrics=self.metrics,
        )
        self._draining = False
        self._running = Running()
        self._backend = Backend(
            self.tokenizer, self.client, self.metrics, self._running, max_buffered=settings.max_buffered_steps
        )

    @property
    def ready(self) -> bool:
        """Whether new requests are taken."""
        return self.client.ready and not self._draining

    @property
    def draining(self) -> bool:
        """Whether a drain has begun."""
        return self._draining

    def check_draining(self) -> None:
        """UnavailableError once a drain has begun."""
        if self._draining:
            raise UnavailableError("the gateway is shutting down; retry elsewhere")

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and wait for the running ones, then cancel those that are left."""
        self._draining = True
        if not await self._running.wait_idle(seconds):
            for generation in self._running:
                generation.abandon(UnavailableError("the gateway is shutting down"))
            await self._running.wait_idle(_LAST_WORDS_SECONDS)

    def model(self, name: str) -> VerifyInfo:
        """Facts of the model called `name`; "" is the only one served. UnknownModelError, UnavailableError."""
        info = self.client.info
        if name not in ("", info.model_name):
            raise UnknownModelError(f"unknown model {name!r}; {info.model_name!r} is served", field="model")
        return info

    async def encode(self, text: str, info: VerifyInfo, *, field: str) -> list[int]:
        """Token ids of a plain prompt. InvalidArgumentError if it is empty or cannot fit the context."""
        if not text:
            raise InvalidArgumentError(f"{field} is empty", field=field)
        return await self._encode(text, info, field=field, add_special_tokens=True)

    async def encode_chat(self, messages: Sequence[Message], info: VerifyInfo, *, field: str) -> list[int]:
        """Token ids of a conversation that has passed check_message_count.

        InvalidArgumentError if the template refuses it or it cannot fit.
        """
        text = self.template.render(messages, field=field)
        return await self._encode(text, info, field=field, add_special_tokens=False)

    async def _encode(self, text: str, info: VerifyInfo, *, field: str, add_special_tokens: bool) -> list[int]:
        _check_unicode(text, field)
        if (fewest := self.tokenizer.fewest_tokens(text)) >= info.max_context:
            raise ContextLengthError(
                f"the model's context is {info.max_context} tokens; the prompt has at least {fewest}", field=field
            )
        if len(text) < _LONG_TEXT:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)

    def open(self, orders: Sequence[Order], info: VerifyInfo, *, prompt_field: str, prefix: str = "") -> Generation:
        """Check the choices of one request and make it ready to run.

        All choices share their sampling parameters. A request without a seed is given one. `prefix` is put before
        the names of sampling parameters in errors. Raises InvalidArgumentError naming the field, UnavailableError.
        """
        self.check_draining()
        first = orders[0]
        check_sampling(first.sampling, info, prefix=prefix)
        check_stop(first.stop)
        check_name("tenant", first.tenant)
        check_name("adapter_id", first.adapter_id)
        if first.speculation is not None:
            check_speculation(first.speculation)
        for order in orders:
            check_context(len(order.prompt_token_ids), order.sampling, info, field=prompt_field, prefix=prefix)
            check_token_ids(prompt_field, order.prompt_token_ids, info)
        seed = secrets.randbits(_SEED_BITS) if first.sampling.seed is None else first.sampling.seed
        sampling = replace(first.sampling, seed=seed)
        weight = self.keys.weight_of(first.tenant)
        orders = [replace(order, sampling=sampling, weight=weight) for order in orders]
        return Generation(orders, info, seed, self._backend, FieldNames(prompt_field, prefix))


def _check_unicode(text: str, field: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{field} is not valid Unicode: {error.reason}", field=field) from error
