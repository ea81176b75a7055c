"""Small requests, read by the gateway itself: what crossing to a worker takes, reading most of them does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway import codec
from gateway.config import GatewaySettings
from gateway.core.request import VerifyInfo
from gateway.openai.schema import ChatCompletionRequest, CompletionRequest, GenerationBody
from gateway.openai.structured import TextFormat
from gateway.text.answer_form import parsers_of
from gateway.text.body import read_body
from gateway.text.conversation import Conversation
from gateway.text.in_process.template_cost import is_cheap
from gateway.text.jobs import Jobs, Read
from gateway.text.prepared import Prepared, WorkerTask
from gateway.tokens.tokenizer import Tokenizer
from slipstream.chat_template import ChatTemplate, Message, read_template
from slipstream.rpc.errors import SlipstreamError
from slipstream.v1 import gateway_pb2

MOST_BYTES: Final = 4096
"""Of a request. Reading so many takes some 10 ms at worst, and a tenth of that for a text in some language."""
MOST_MESSAGES: Final = 32
_MOST_VALUES: Final = 1024
"""Lists, objects and separators of a JSON body."""
_MOST_WRITTEN: Final = 2 * MOST_BYTES
"""Characters of a prompt, which has what the template adds as well."""
_PLAIN: Final = frozenset({"role", "content"})


class SmallRequests:
    """Does the jobs of text workers for requests whose cost is known to be small, whatever they say.

    These are few bytes and values, without grammars or tools. Texts are read where the model's tokenizer takes time in
    proportion to them, and chats of plain messages where the template is cheap too. Results and errors are those of
    workers.
    """

    __slots__ = ("_chats", "_jobs", "_texts")

    def __init__(self, settings: GatewaySettings, tokenizer: Tokenizer) -> None:
        """What `settings` name has been loaded once, within limits."""
        source, special_tokens = read_template(settings.model, settings.chat_template)
        self._texts = tokenizer.is_bounded
        self._chats = self._texts and (
            source is None or is_cheap(source, special_tokens, most_characters=MOST_BYTES, most_messages=MOST_MESSAGES)
        )
        template = ChatTemplate(source, special_tokens) if self._chats else ChatTemplate(None, {})
        self._jobs = _SmallJobs(
            settings.model,
            tokenizer,
            template,
            parsers_of(settings.model, template.source, settings.tool_call_parser, settings.reasoning_parser),
            max_bytes=settings.max_body_bytes,
            max_choices=settings.max_choices,
        )

    def prepare(self, job: WorkerTask, payload: bytes | bytearray, info: VerifyInfo) -> Prepared | None:
        """The request, prepared; None where a worker has to do that. Errors as of `TextWorkers.prepare`."""
        if not self._texts or len(payload) > MOST_BYTES:
            return None
        try:
            found = self._unchecked(job, payload, info)
        except SlipstreamError:
            raise
        except Exception:  # noqa: BLE001  # a worker tells what is wrong with it
            return None
        return None if found is None or found[1] else found[0]

    def _unchecked(self, job: WorkerTask, payload: bytes | bytearray, info: VerifyInfo) -> Read | None:
        match job:
            case WorkerTask.CHAT if self._chats and _has_few_values(payload):
                chat, values = read_body(payload, ChatCompletionRequest)
                if _is_held(chat) or chat.tools or chat.chat_template_kwargs or chat.reasoning_effort:
                    return None
                return self._jobs.chat(chat, values, info)
            case WorkerTask.COMPLETION if _has_few_values(payload):
                body, values = read_body(payload, CompletionRequest)
                # Few ids of long tokens make a long text.
                return None if _is_held(body) or body.echo else self._jobs.complete(body, values, info)
            case WorkerTask.GENERATE:
                request = codec.read_request(gateway_pb2.GenerateRequest, payload)
                if request.sampling.HasField("grammar") or (request.HasField("chat") and not self._chats):
                    return None
                return self._jobs.generate(request, info)
        return None


class _LeftToWorkersError(Exception):
    """The request is not as small as it seemed."""


class _SmallJobs(Jobs):
    """Jobs that end where the cost of a request is not known to be small."""

    __slots__ = ()

    def _pieces(
        self, messages: Sequence[Message], chat: Conversation, *, field: str, add_generation_prompt: bool
    ) -> Iterator[str]:
        if len(messages) > MOST_MESSAGES or any(message.keys() != _PLAIN for message in messages):
            raise _LeftToWorkersError
        length = 0
        for piece in super()._pieces(messages, chat, field=field, add_generation_prompt=add_generation_prompt):
            length += len(piece)
            if length > _MOST_WRITTEN:
                raise _LeftToWorkersError
            yield piece


def _has_few_values(body: bytes | bytearray) -> bool:
    return sum(map(body.count, (b"[", b"{", b",", b":"))) <= _MOST_VALUES


def _is_held(body: GenerationBody) -> bool:
    """Whether the answer has to match something."""
    return body.structured_outputs is not None or not isinstance(body.response_format, TextFormat | None)
