"""Between the client's types and the messages of slipstream.v1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from slipstream.completion import (
    Event,
    FinishReason,
    Grammar,
    Message,
    Model,
    Options,
    SpeculationOptions,
)
from slipstream.generation_codec import (
    read_position,
    read_step,
    read_timings,
    read_usage,
    write_speculation,
)
from slipstream.grammar.codec import encode_grammar
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import gateway_pb2, sampling_pb2

_SAMPLING: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "max_tokens",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
)
_REQUEST: Final = ("model", "tenant", "adapter_id", "choice_index")
_SHOWN: Final = 80
"""Characters of a value that an error repeats."""
_REASONS: Final[dict[int, FinishReason]] = {
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
}


def write_request(
    prompt: str | None, messages: Sequence[Message] | None, token_ids: Sequence[int] | None, options: Options
) -> gateway_pb2.GenerateRequest:
    """A request for one choice. InvalidArgumentError for what cannot even be written, TypeError for unknown options."""
    if sum(given is not None for given in (prompt, messages, token_ids)) != 1:
        raise InvalidArgumentError("give exactly one of prompt, messages and token_ids", field="prompt")
    given = dict(options)
    given.pop("timeout", None)
    stop = given.pop("stop", ())
    speculation, grammar = given.pop("speculation", None), given.pop("grammar", None)
    sampling = {name: given.pop(name) for name in _SAMPLING if name in given}
    fields = {name: given.pop(name) for name in _REQUEST if name in given}
    if given:
        raise TypeError(f"unknown options: {', '.join(sorted(given))}")
    request = gateway_pb2.GenerateRequest()
    for name, value in fields.items():
        with _named(name, value):
            request.MergeFrom(gateway_pb2.GenerateRequest(**{name: value}))  # type: ignore[arg-type]  # protobuf checks
    for option, value in sampling.items():
        with _named(option, value):
            request.sampling.MergeFrom(sampling_pb2.SamplingParams(**{option: value}))  # type: ignore[arg-type]  # as above
    with _named("stop", stop):
        request.stop.extend([stop] if isinstance(stop, str) else stop)  # type: ignore[arg-type]  # as above
    if isinstance(speculation, SpeculationOptions):
        with _named("speculation", speculation):
            request.speculation.CopyFrom(write_speculation(speculation))
    if isinstance(grammar, Grammar):
        with _named("grammar", grammar):
            request.sampling.grammar.CopyFrom(encode_grammar(grammar))
    elif grammar is not None:
        raise InvalidArgumentError(
            f"grammar is of type {type(grammar).__name__}, must be a slipstream.Grammar", field="grammar"
        )
    _write_prompt(request, prompt, messages, token_ids)
    return request


@contextmanager
def _named(field: str, value: object) -> Iterator[None]:
    """Values that a message cannot hold, by their type or size, are errors that name `field`."""
    try:
        yield
    except KeyError as error:
        raise InvalidArgumentError(f"{field} lacks {error}", field=field) from error
    except (TypeError, ValueError) as error:
        shown = repr(value)
        if len(shown) > _SHOWN:
            shown = shown[:_SHOWN] + "..."
        raise InvalidArgumentError(f"{field} cannot be {shown}: {error}", field=field) from error


def _write_prompt(
    request: gateway_pb2.GenerateRequest,
    prompt: str | None,
    messages: Sequence[Message] | None,
    token_ids: Sequence[int] | None,
) -> None:
    if prompt is not None:
        with _named("prompt", prompt):
            if not isinstance(prompt, str):
                raise TypeError("it is no string; token_ids= takes token ids")
            request.text = prompt
    elif messages is not None:
        request.chat.SetInParent()
        for index, message in enumerate(messages):
            with _named(f"messages[{index}]", message):
                request.chat.messages.add(role=message["role"], content=message["content"])
    elif token_ids is not None:
        request.token_ids.SetInParent()
        with _named("token_ids", token_ids):
            request.token_ids.ids.extend(token_ids)


def write_tokenize(prompt: str | None, messages: Sequence[Message] | None, model: str) -> gateway_pb2.TokenizeRequest:
    """A request for token ids."""
    whole = write_request(prompt, messages, None, {"model": model})
    if messages is not None:
        return gateway_pb2.TokenizeRequest(model=model, chat=whole.chat)
    return gateway_pb2.TokenizeRequest(model=model, text=whole.text)


def read_event(message: gateway_pb2.GenerateResponse) -> Event:
    """What one message of the stream says."""
    return Event(
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=tuple(read_position(entry) for entry in message.logprobs),
        step=read_step(message.step) if message.HasField("step") else None,
        seed=message.seed if message.HasField("seed") else None,
        finish_reason=_REASONS.get(message.finish_reason),
        usage=read_usage(message.usage) if message.HasField("usage") else None,
        timings=read_timings(message.timings) if message.HasField("timings") else None,
        stop_string=message.stop_string or None,
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        prompt_logprobs=tuple(
            read_position(entry) if entry.HasField("chosen") else None for entry in message.prompt_logprobs
        ),
    )


def read_models(message: gateway_pb2.ListModelsResponse) -> list[Model]:
    """The models that can be asked for."""
    return list(map(read_model, message.models))


def read_model(entry: gateway_pb2.Model) -> Model:
    """A model, or an adapter of one."""
    return Model(
        name=entry.name,
        max_context=entry.max_context,
        vocab_size=entry.vocab_size,
        proposers=tuple(entry.proposers),
        default_proposer=entry.default_proposer or None,
        parent=entry.parent or None,
    )
