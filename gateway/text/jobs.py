"""What text workers do: read a request of either API, check its texts and tokenise them.

All of it may take long, use much memory or end the process, as the caller's bytes and the checkpoint's template and
tokenizer decide. So it runs in text workers, but for requests that are known to be cheap (`in_process`).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self

import orjson

from gateway import codec
from gateway.core.limits import (
    ContextLengthError,
    adapter_of,
    check_choices,
    check_message_count,
    check_model,
    check_prompt_tokens,
    check_token_ids,
    chosen_adapter,
)
from gateway.core.request import VerifyInfo
from gateway.openai.messages import ChatMessage, call_arguments, content_length, for_template
from gateway.openai.schema import ChatCompletionRequest, CompletionRequest, GenerationBody
from gateway.openai.tokenize_schema import DetokenizeRequest, TokenizeRequest
from gateway.openai.types import DetokenizedText, Tokens
from gateway.output_parsers.registry import AnswerForm, Names
from gateway.text.answer_form import AUTO, AnsweringModel, answer_plan, parsers_of
from gateway.text.body import read_body
from gateway.text.conversation import Conversation, conversation
from gateway.text.grammar_checks import GrammarChecks, Unchecked, unhurried
from gateway.text.grammars import Check, Wanted, checked, sized, wanted_grammar
from gateway.text.json_values import Values, check_texts
from gateway.text.prepared import Prepared, WorkerTask, token_array
from gateway.text.wire_fields import check_fields
from gateway.tokens.tokenizer import Tokenizer
from slipstream.chat_template import ChatTemplate, Message
from slipstream.generation_codec import read_speculation
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream.model_folder import TEMPLATE_FILE
from slipstream.prefix_hash import PromptHashes, hash_prompt
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import gateway_pb2

_MOST_RENDERED: Final = 16 * 1024 * 1024
"""Characters that a template may write where the tokenizer gives no bound."""

_MOST_ANSWERED: Final = 16 * 1024 * 1024
"""Bytes of an answer that a worker writes: a few bytes may name a token of a hundred."""

_MOST_LEFT_OUT: Final = 4
"""Messages may have so many times the text that can fit the context."""

Read = tuple[Prepared, tuple[Check, ...]]
"""A request that is read, and what is left to check of its grammar."""

Stages = Callable[[str], None]
"""Told what is about to be read."""


class Jobs:
    """The jobs of one model. Errors are InvalidArgumentError naming the field, and NotFoundError for another model."""

    __slots__ = ("_checks", "_folder", "_grammar_tokenizer", "_max_bytes", "_max_choices", "_template", "_tokenizer",
                 "parsers")  # fmt: skip

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        parsers: Names,
        *,
        max_bytes: int,
        max_choices: int,
    ) -> None:
        """Jobs of the model in `folder`, whose answers to chats `parsers` read."""
        self._folder = folder
        self._grammar_tokenizer: GrammarTokenizer | None = None
        self._checks = GrammarChecks()
        self._max_bytes = max_bytes
        self._max_choices = max_choices
        self._tokenizer = tokenizer
        self._template = template
        self.parsers = parsers

    @classmethod
    def load(
        cls,
        folder: Path,
        template: Path | None = None,
        *,
        max_bytes: int,
        max_choices: int,
        stages: Stages,
        tool_call_parser: str = AUTO,
        reasoning_parser: str = AUTO,
    ) -> Self:
        """Load tokenizer and template from `folder`, the latter from the file `template` where there is one.

        The template decides on parsers that are AUTO. FailedPreconditionError, naming the file, if it cannot be used.
        """
        stages(os.fspath(folder / "tokenizer.json"))
        tokenizer = Tokenizer(folder)
        file = template or folder / TEMPLATE_FILE
        stages(os.fspath(file if file.is_file() else folder / "tokenizer_config.json"))
        chat_template = ChatTemplate.from_folder(folder, template)
        parsers = parsers_of(folder, chat_template.source, tool_call_parser, reasoning_parser)
        return cls(folder, tokenizer, chat_template, parsers, max_bytes=max_bytes, max_choices=max_choices)

    def run(
        self,
        job: WorkerTask,
        data: bytearray,
        info: VerifyInfo,
        unchecked: Unchecked = unhurried,
    ) -> Prepared | array[int] | bytes:
        """Do one job for the model of `info`.

        `unchecked` is handed a request that is read but for the check of its grammar, which may take long, and does it.
        """
        match job:
            case WorkerTask.CHAT:
                return self._checks.run(*self.chat(*read_body(data, ChatCompletionRequest), info), unchecked)
            case WorkerTask.COMPLETION:
                return self._checks.run(*self.complete(*read_body(data, CompletionRequest), info), unchecked)
            case WorkerTask.GENERATE:
                return self._checks.run(*self.generate(self._read(gateway_pb2.GenerateRequest, data), info), unchecked)
            case WorkerTask.TOKENIZE:
                request = self._read(gateway_pb2.TokenizeRequest, data)
                check_model(request.model, info)
                return self._prompt(request, info)[0]
            case WorkerTask.TOKENIZE_HTTP:
                return _answer(self._tokenize(data, info), "prompt")
            case WorkerTask.DETOKENIZE_HTTP:
                return _answer(self._detokenize(data, info), "tokens")

    def chat(self, body: ChatCompletionRequest, values: Values, info: VerifyInfo) -> Read:
        """Prepare a chat."""
        adapter_id = adapter_of(body.model, info)
        check_choices(body.choices_per_prompt, self._max_choices)
        tools = [(body.tools or ())[index] for index in body.tool_policy.shown]
        written = self._write(body.messages, info, conversation(body, tools, values, self._template))
        tokens = partial(self._grammar_tokens, info)
        model = AnsweringModel(self.parsers, self._template.source, self._tokenizer, tokens)
        plan = answer_plan(body, values, written, model)
        prompt = self._tokenise(written, info, field="messages", add_special_tokens=False)
        wanted = None if plan.grammar is None else Wanted(plan.grammar, plan.field)
        prepared = _prepared(body, info, (prompt,), adapter_id=adapter_id, wanted=wanted, answer=plan.form)
        return prepared, plan.checks

    def complete(self, body: CompletionRequest, values: Values, info: VerifyInfo) -> Read:
        """Prepare a plain completion."""
        adapter_id = adapter_of(body.model, info)
        prompts = body.prompts
        check_choices(len(prompts) * body.choices_per_prompt, self._max_choices)
        encoded = tuple(
            self._encode(prompt, info, field="prompt")
            if isinstance(prompt, str)
            else self._ids(prompt, values, info, field="prompt")
            for prompt in prompts
        )
        echoes: tuple[str, ...] = ()
        if body.echo:
            echoes = tuple(
                prompt if isinstance(prompt, str) else self._tokenizer.decode(ids)
                for prompt, ids in zip(prompts, encoded, strict=True)
            )
        wanted = wanted_grammar(body, values)
        checks = () if wanted is None else (partial(checked, wanted, partial(self._grammar_tokens, info)),)
        return _prepared(body, info, encoded, echoes, adapter_id=adapter_id, wanted=wanted), checks

    def generate(self, request: gateway_pb2.GenerateRequest, info: VerifyInfo) -> Read:
        """Prepare a request of the gRPC API."""
        adapter_id = chosen_adapter(request.adapter_id, request.model, info)
        prompt, field = self._prompt(request, info)
        sampling = codec.read_sampling(request.sampling)
        checks: tuple[Check, ...] = ()
        if sampling.grammar is not None:
            kind = sampling.grammar.kind
            wanted = sized(Wanted(sampling.grammar, f"sampling.grammar.{kind}" if kind else "sampling.grammar"))
            checks = (partial(checked, wanted, partial(self._grammar_tokens, info)),)
        prepared = Prepared(
            prompts=(prompt,),
            wires=(codec.write_prompt(prompt),),
            hashes=_hashes((prompt,), info),
            prompt_field=field,
            sampling=sampling,
            speculation=read_speculation(request.speculation) if request.HasField("speculation") else None,
            stop=tuple(request.stop),
            tenant=request.tenant,
            adapter_id=adapter_id,
            choice_index=request.choice_index,
            grammar_wire=codec.write_grammar(sampling.grammar),
        )
        return prepared, checks

    def _tokenize(self, data: bytearray, info: VerifyInfo) -> Tokens:
        body, values = read_body(data, TokenizeRequest)
        check_model(body.model or "", info)
        if body.messages is not None:
            written = self._write(
                body.messages,
                info,
                conversation(body, body.tools or (), values, self._template),
                add_generation_prompt=body.add_generation_prompt is not False,
            )
            special = bool(body.add_special_tokens)
            ids = self._tokenise(written, info, field="messages", add_special_tokens=special)
        else:
            special = body.add_special_tokens is not False
            ids = self._tokenise(body.prompt or "", info, field="prompt", add_special_tokens=special)
        check_prompt_tokens(len(ids), info, field="prompt" if body.messages is None else "messages")
        names = self._tokenizer.names(ids) if body.return_token_strs else None
        return {"count": len(ids), "max_model_len": info.max_context, "tokens": ids.tolist(), "token_strs": names}

    def _detokenize(self, data: bytearray, info: VerifyInfo) -> DetokenizedText:
        body, values = read_body(data, DetokenizeRequest)
        check_model(body.model or "", info)
        ids = self._ids(body.tokens, values, info, field="tokens")
        return {"prompt": self._tokenizer.decode(ids, skip_special_tokens=False)}

    def _grammar_tokens(self, info: VerifyInfo) -> GrammarTokenizer:
        """The tokenizer as grammars need it, read when the first one names a token."""
        if self._grammar_tokenizer is None or self._grammar_tokenizer.vocab_size != info.vocab_size:
            ends = sorted(info.eos_token_ids)
            self._grammar_tokenizer = load_tokenizer(self._folder, vocab_size=info.vocab_size, eos_token_ids=ends)
        return self._grammar_tokenizer

    def _read(self, kind: type[codec.M], data: bytearray) -> codec.M:
        check_fields(data, kind.DESCRIPTOR, self._max_bytes)
        return codec.read_request(kind, data)

    def _prompt(
        self, request: gateway_pb2.GenerateRequest | gateway_pb2.TokenizeRequest, info: VerifyInfo
    ) -> tuple[array[int], str]:
        """The prompt's token ids, and the name of the field that it stands in."""
        kind = request.WhichOneof("prompt")
        if kind == "chat":
            check_message_count("chat.messages", len(request.chat.messages), info)
            length = sum(len(entry.content) for entry in request.chat.messages)
            self._check_length(length, info, field="chat.messages")
            messages = [{"role": entry.role, "content": entry.content} for entry in request.chat.messages]
            written = self._render(messages, info, Conversation(), field="chat.messages")
            return self._tokenise(written, info, field="chat.messages", add_special_tokens=False), "chat.messages"
        if kind == "text":
            return self._encode(request.text, info, field="text"), "text"
        if kind == "token_ids" and isinstance(request, gateway_pb2.GenerateRequest):
            check_prompt_tokens(len(request.token_ids.ids), info, field="token_ids")
            ids = token_array(request.token_ids.ids)
            check_token_ids("token_ids", ids, info)
            return ids, "token_ids"
        raise InvalidArgumentError("one of the prompt's fields must be set", field="prompt")

    def _ids(self, given: Sequence[int], values: Values, info: VerifyInfo, *, field: str) -> array[int]:
        ids = values.ids(given)
        check_prompt_tokens(len(ids), info, field=field)
        check_token_ids(field, ids, info)
        return ids

    def _encode(self, text: str, info: VerifyInfo, *, field: str) -> array[int]:
        if not text:
            raise InvalidArgumentError(f"{field} is empty", field=field)
        return self._tokenise(text, info, field=field, add_special_tokens=True)

    def _check_length(self, characters: int, info: VerifyInfo, *, field: str) -> None:
        """Refuse messages with far more text than the context holds, though a template may leave some of it out."""
        most = self._tokenizer.most_characters(info.max_context)
        if most is not None and characters > _MOST_LEFT_OUT * most:
            reason = f"the model's context is {info.max_context} tokens; {field} have {characters} characters"
            raise ContextLengthError(reason, field=field)

    def _write(
        self,
        messages: Sequence[ChatMessage],
        info: VerifyInfo,
        chat: Conversation,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt of the messages of a JSON body."""
        check_message_count("messages", len(messages), info)
        self._check_length(sum(map(content_length, messages)) + chat.length, info, field="messages")
        check_texts([text for message in messages for text in call_arguments(message)], "messages")
        written = list(map(for_template, messages))
        return self._render(written, info, chat, field="messages", add_generation_prompt=add_generation_prompt)

    def _render(
        self,
        messages: Sequence[Message],
        info: VerifyInfo,
        chat: Conversation,
        *,
        field: str,
        add_generation_prompt: bool = True,
    ) -> str:
        """A conversation as a prompt. The template is stopped once its text cannot fit the context any more."""
        longest = self._tokenizer.most_characters(info.max_context) or _MOST_RENDERED
        pieces, length = [], 0
        for piece in self._pieces(messages, chat, field=field, add_generation_prompt=add_generation_prompt):
            pieces.append(piece)
            length += len(piece)
            if length > longest:
                reason = f"the chat template writes more than {longest} characters for {field}"
                raise ContextLengthError(f"{reason}; the model's context is {info.max_context} tokens", field=field)
        return "".join(pieces)

    def _pieces(
        self, messages: Sequence[Message], chat: Conversation, *, field: str, add_generation_prompt: bool
    ) -> Iterator[str]:
        return self._template.pieces(
            messages,
            field=field,
            add_generation_prompt=add_generation_prompt,
            tools=chat.tools,
            variables=chat.variables,
        )

    def _tokenise(self, text: str, info: VerifyInfo, *, field: str, add_special_tokens: bool) -> array[int]:
        if (fewest := self._tokenizer.fewest_tokens(text)) >= info.max_context:
            raise ContextLengthError(
                f"the model's context is {info.max_context} tokens; the prompt has at least {fewest}", field=field
            )
        _check_unicode(text, field)
        try:
            ids = token_array(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{field}: {error.message}", field=field) from error
        check_token_ids(field, ids, info)
        return ids


def _hashes(prompts: tuple[array[int], ...], info: VerifyInfo) -> tuple[PromptHashes | None, ...]:
    """Here and not as requests are routed, which is to take no time of the event loop."""
    return tuple(hash_prompt(prompt, info.page_size) if info.watched else None for prompt in prompts)


def _prepared(
    body: GenerationBody,
    info: VerifyInfo,
    prompts: tuple[array[int], ...],
    echoes: tuple[str, ...] = (),
    *,
    adapter_id: str = "",
    wanted: Wanted | None = None,
    answer: AnswerForm | None = None,
) -> Prepared:
    grammar = None if wanted is None else wanted.grammar
    return Prepared(
        prompts=prompts,
        wires=tuple(map(codec.write_prompt, prompts)),
        hashes=_hashes(prompts, info),
        prompt_field=body.prompt_field,
        sampling=replace(body.sampling(), grammar=grammar),
        speculation=body.speculation_wish(),
        stop=body.stop_strings,
        tenant=body.user or "",
        adapter_id=adapter_id,
        choices=body.choices_per_prompt,
        echoes=echoes,
        stream=bool(body.stream),
        include_usage=body.include_usage,
        return_token_ids=bool(body.return_token_ids),
        prompt_logprobs=body.prompt_logprobs,
        answer=answer,
        grammar_field="" if wanted is None else wanted.field,
        grammar_wire=codec.write_grammar(grammar),
    )


def _answer(content: Tokens | DetokenizedText, field: str) -> bytes:
    """The body of an answer. InvalidArgumentError naming `field` if it is out of all proportion."""
    body = orjson.dumps(content)
    if len(body) > _MOST_ANSWERED:
        raise InvalidArgumentError(f"{field}: the answer would have more than {_MOST_ANSWERED} bytes", field=field)
    return body


def _check_unicode(text: str, field: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{field} is not valid Unicode: {error.reason}", field=field) from error
