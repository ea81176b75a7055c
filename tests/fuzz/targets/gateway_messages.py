"""Messages of the public gRPC API into the handlers of the gateway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

import grpc

from fuzz.in_gateway import MODEL, VOCABULARY, InGateway
from fuzz.messages import made
from fuzz.raw_bytes import joined, parted
from fuzz.target import BrokenError, Target
from slipstream.v1 import gateway_pb2, sampling_pb2

_REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
_GENERATE, _TOKENIZE, _LIST = range(3)
_METADATA = ("", "Bearer x", "Bearer", "Basic x", "Bearer " + "y" * 5000)


def _generate(random: Random) -> gateway_pb2.GenerateRequest:
    message = gateway_pb2.GenerateRequest(
        model=random.choice(("", MODEL)),
        sampling=sampling_pb2.SamplingParams(max_tokens=random.choice((1, 2, 40)), temperature=0.5),
        stop=random.choice(([], ["x"], ["ab", "b"])),
    )
    if random.random() < 0.3:
        message.speculation.max_nodes = random.randint(1, 64)
    return _prompted(random, message)


def _tokenize(random: Random) -> gateway_pb2.TokenizeRequest:
    return _prompted(random, gateway_pb2.TokenizeRequest(model=random.choice(("", MODEL))))


def _prompted(random: Random, message):
    kind = random.randrange(3)
    if kind == 0:
        message.chat.messages.add(role=random.choice(("system", "user", "assistant")), content="why?")
    elif kind == 1 or isinstance(message, gateway_pb2.TokenizeRequest):
        message.text = random.choice(("a lighthouse", "<|begin|>x<|end|>", "é\u0301東\U0001f600", "a" * 3000))
    else:
        message.token_ids.ids.extend(random.randrange(VOCABULARY) for _ in range(random.choice((1, 5, 300))))
    return message


_MAKE: dict[int, tuple[Callable, ...]] = {
    _GENERATE: (_generate,),
    _TOKENIZE: (_tokenize,),
    _LIST: (lambda random: gateway_pb2.ListModelsRequest(),),
}


class GatewayMessages(Target):
    """Each call ends with an answer that its caller can read, or a status that says what is wrong with the call."""

    name: ClassVar[str] = "gateway_messages"
    share: ClassVar[int] = 30

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._inside = InGateway(folder)
        name, channel = "/slipstream.v1.GatewayService/", self._inside.channel
        self._generate = channel.unary_stream(f"{name}Generate")
        self._tokenize = channel.unary_unary(f"{name}Tokenize")
        self._list_models = channel.unary_unary(f"{name}ListModels")

    def make(self, random: Random) -> bytes:
        """The method, metadata and the message."""
        method = random.choice((_GENERATE, _GENERATE, _GENERATE, _TOKENIZE, _TOKENIZE, _LIST))
        header = random.choice(_METADATA) if random.random() < 0.1 else ""
        return joined([bytes([method]), header.encode(), made(random, _MAKE[method])])

    def check(self, data: bytes) -> None:
        kind, header, message = [*parted(data, 3), b"", b"", b""][:3]
        metadata = [("authorization", header.decode("ascii", "replace"))] if header.isascii() and header else []
        try:
            self._inside.run(self._call(kind[0] % 3 if kind else _LIST, message, metadata))
        except grpc.aio.AioRpcError as error:
            if error.code() not in _REFUSALS or not error.details():
                raise BrokenError(f"ended with {error.code().name}: {error.details()}") from error
        self._inside.check_unheard()

    def settle(self) -> None:
        request = gateway_pb2.GenerateRequest(text="ab", sampling=sampling_pb2.SamplingParams(max_tokens=2))
        text = "".join(answer.text for answer in self._inside.run(self._stream(request.SerializeToString(), [])))
        if text != "ab":
            raise BrokenError(f"the gateway does not go on: {text!r}")
        self._inside.check_tasks()

    def close(self) -> None:
        self._inside.close()

    async def _call(self, method: int, message: bytes, metadata: list[tuple[str, str]]) -> None:
        if method == _GENERATE:
            await self._stream(message, metadata)
        elif method == _TOKENIZE:
            answer = gateway_pb2.TokenizeResponse.FromString(await self._tokenize(message, metadata=metadata))
            if any(token >= VOCABULARY for token in answer.token_ids):
                raise BrokenError(f"tokens beyond the vocabulary: {answer}")
        else:
            models = gateway_pb2.ListModelsResponse.FromString(
                await self._list_models(message, metadata=metadata)
            ).models
            if [model.name for model in models] != [MODEL]:
                raise BrokenError(f"other models: {models}")

    async def _stream(self, message: bytes, metadata: list[tuple[str, str]]) -> list[gateway_pb2.GenerateResponse]:
        """One finish reason, in the last message, and a seed in the first one."""
        call = self._generate(message, metadata=metadata)
        answers = [gateway_pb2.GenerateResponse.FromString(each) async for each in call]
        ends = [answer.finish_reason != sampling_pb2.FINISH_REASON_UNSPECIFIED for answer in answers]
        if not answers or ends != [False] * (len(ends) - 1) + [True] or not answers[0].HasField("seed"):
            raise BrokenError(f"a stream without an end or a seed: {answers}")
        return answers
