"""Ranges of the public parameters (slipstream/v1/sampling.proto), and the one check that both APIs apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.request import ChoiceRequest, Sampling, VerifyInfo
from slipstream.generation_types import SpeculationOptions
from slipstream.rpc.errors import InvalidArgumentError, NotFoundError


@dataclass(frozen=True, slots=True)
class Range:
    """Values from `low` to `high`; `open_low` excludes `low` itself, `least` what lies between `low` and it."""

    low: float
    high: float
    open_low: bool = False
    least: float | None = None

    def __contains__(self, value: float) -> bool:
        if self.least is not None and self.low < value < self.least:
            return False
        return (self.low < value if self.open_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.open_low:
            return f"greater than {self.low:g} and at most {_figure(self.high)}"
        if self.least is not None:
            return f"{_figure(self.low)} or from {_figure(self.least)} to {_figure(self.high)}"
        return f"from {_figure(self.low)} to {_figure(self.high)}"


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


MAX_INT: Final = 2**31 - 1
TEMPERATURE: Final = Range(0, 2, least=9.999999747378752e-06)
"""From 1e-5 as float32, in which the verify service gets it."""
TOP_K: Final = Range(0, MAX_INT)
TOP_P: Final = Range(0, 1, open_low=True)
MIN_P: Final = Range(0, 1)
SEED: Final = Range(0, 2**64 - 1)
REPETITION_PENALTY: Final = Range(0.009999999776482582, 2)
"""From 0.01 as float32."""
PENALTY: Final = Range(-2, 2)
BIAS: Final = Range(-100, 100)
MAX_TOKENS: Final = Range(1, MAX_INT)
SCORED_MAX_TOKENS: Final = Range(0, MAX_INT)
"""Of requests that ask for the prompt's logprobs."""
MIN_TOKENS: Final = Range(0, MAX_INT)
LOGPROBS: Final = Range(0, 20)
MAX_PROMPT_LOGPROBS: Final = 4 * 1024 * 1024
"""Entries in the answer to one request: for each token of its prompts one, and those of alternatives."""
MAX_NODES: Final = Range(1, 64)
MAX_DEPTH: Final = Range(0, 63)
MAX_BIASES: Final = 1024
MAX_STOP_TOKENS: Final = 128
MAX_STOP_STRINGS: Final = 16
MAX_STOP_LENGTH: Final = 256
MAX_NAME_BYTES: Final = 256
_MOST_NAMED: Final = 16
"""Adapters that an error names."""
_MOST_REPEATED: Final = 200
"""Characters of a caller's text that an error repeats."""


def _check(name: str, value: float | None, allowed: Range) -> None:
    if value is not None and value not in allowed:
        raise InvalidArgumentError(f"{name} must be {allowed}, got {_figure(value)}", field=name)


def check_sampling(sampling: Sampling, info: VerifyInfo, *, prefix: str = "") -> None:
    """Raise InvalidArgumentError naming the first field of `sampling` that is out of range."""
    check_ranges(sampling, prefix=prefix)
    _check_count(prefix + "logit_bias", len(sampling.logit_bias), MAX_BIASES)
    _check_count(prefix + "stop_token_ids", len(sampling.stop_token_ids), MAX_STOP_TOKENS)
    for token_id, bias in sampling.logit_bias.items():
        _check(f"{prefix}logit_bias.{token_id}", bias, BIAS)
    check_token_ids(prefix + "logit_bias", list(sampling.logit_bias), info)
    check_token_ids(prefix + "stop_token_ids", sampling.stop_token_ids, info)
    if sampling.max_tokens is not None and (sampling.min_tokens or 0) > sampling.max_tokens:
        raise InvalidArgumentError(
            f"{prefix}min_tokens must be at most max_tokens, got {sampling.min_tokens} > {sampling.max_tokens}",
            field=prefix + "min_tokens",
        )


def check_ranges(sampling: Sampling, *, prefix: str = "") -> None:
    """The part of `check_sampling` that looks at single numbers."""
    for name, allowed in (
        ("temperature", TEMPERATURE),
        ("top_k", TOP_K),
        ("top_p", TOP_P),
        ("min_p", MIN_P),
        ("seed", SEED),
        ("repetition_penalty", REPETITION_PENALTY),
        ("presence_penalty", PENALTY),
        ("frequency_penalty", PENALTY),
        ("max_tokens", MAX_TOKENS if sampling.prompt_logprobs is None else SCORED_MAX_TOKENS),
        ("min_tokens", MIN_TOKENS),
        ("logprobs", LOGPROBS),
        ("prompt_logprobs", LOGPROBS),
    ):
        _check(prefix + name, getattr(sampling, name), allowed)


def check_speculation(speculation: SpeculationOptions) -> None:
    """Raise InvalidArgumentError naming the first field of `speculation` that is out of range."""
    _check("speculation.max_nodes", speculation.max_nodes, MAX_NODES)
    _check("speculation.max_depth", speculation.max_depth, MAX_DEPTH)


def check_stop(stop: Sequence[str]) -> None:
    """Raise InvalidArgumentError if there are too many stop strings or one has a wrong length."""
    _check_count("stop", len(stop), MAX_STOP_STRINGS)
    for text in stop:
        if not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise InvalidArgumentError(
                f"stop strings must have 1 to {MAX_STOP_LENGTH} characters, got {len(text)}", field="stop"
            )


def check_name(name: str, value: str) -> None:
    """Raise InvalidArgumentError if `value` is longer than a tenant or adapter id may be."""
    if (size := len(value.encode("utf-8", "surrogatepass"))) > MAX_NAME_BYTES:
        raise InvalidArgumentError(f"{name} must be at most {MAX_NAME_BYTES} bytes, got {size}", field=name)


def check_token_ids(name: str, token_ids: Sequence[int], info: VerifyInfo) -> None:
    """Raise InvalidArgumentError if an id lies outside the model's vocabulary."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < info.vocab_size:
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < info.vocab_size)
        raise InvalidArgumentError(f"{name}: token ids must be below {info.vocab_size}, got {wrong}", field=name)


def _check_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidArgumentError(f"{name} may have at most {most} entries, got {count}", field=name)


class UnknownModelError(NotFoundError):
    """The request names a model that is not served."""


def check_model(name: str, info: VerifyInfo) -> None:
    """Raise UnknownModelError unless `name` is that of the model served, or of an adapter, or empty: the model."""
    adapter_of(name, info)


def adapter_of(name: str, info: VerifyInfo) -> str:
    """The id of the adapter that `name` chooses in the place of a model's; "" for the model itself.

    Raises UnknownModelError.
    """
    if name in ("", info.model_name):
        return ""
    adapter = info.adapter(name)
    if adapter is None:
        served = ", ".join(map(repr, (info.model_name, *(each.name for each in info.adapters[:_MOST_NAMED]))))
        verb = "are" if info.adapters else "is"
        raise UnknownModelError(f"unknown model {shortened(name)!r}; {served} {verb} served", field="model")
    return adapter.id


def chosen_adapter(name_or_id: str, model: str, info: VerifyInfo) -> str:
    """The id of the adapter that a field of its own names, or else a model's name as of `adapter_of`.

    Raises NotFoundError, and UnknownModelError for the model.
    """
    named = adapter_of(model, info)
    if not name_or_id:
        return named
    adapter = info.adapter(name_or_id)
    if adapter is None:
        raise NotFoundError(f"no adapter {shortened(name_or_id)!r} is loaded", field="adapter_id")
    return adapter.id


def shortened(text: str) -> str:
    """`text` as an error may repeat it."""
    return text if len(text) <= _MOST_REPEATED else text[:_MOST_REPEATED] + "..."


class ContextLengthError(InvalidArgumentError):
    """Prompt and output together exceed the model's context."""


def check_message_count(name: str, count: int, info: VerifyInfo) -> None:
    """Raise if there are no messages, or more than the model's context can hold at a token each."""
    if count == 0:
        raise InvalidArgumentError(f"{name} is empty", field=name)
    if count >= info.max_context:
        raise ContextLengthError(
            f"the model's context is {info.max_context} tokens; {name} has {count} entries", field=name
        )


def check_prompt_tokens(count: int, info: VerifyInfo, *, field: str) -> None:
    """Raise if a prompt alone fills the model's context."""
    if count >= info.max_context:
        raise ContextLengthError(
            f"the model's context is {info.max_context} tokens; the prompt has {count}", field=field
        )


def check_choices(count: int, most: int) -> None:
    """Raise InvalidArgumentError if a request has more choices, prompts times n, than the operator allows."""
    if count > most:
        raise InvalidArgumentError(f"a request may have at most {most} choices, this one has {count}", field="n")


def check_prompt_logprobs(requests: Sequence[ChoiceRequest], *, prefix: str = "") -> None:
    """Raise InvalidArgumentError if an answer would have more log-probabilities of prompts than one may."""
    asked = requests[0].sampling.prompt_logprobs
    if asked is None:
        return
    count = (1 + asked) * sum(len(request.prompt_token_ids) for request in requests)
    if count > MAX_PROMPT_LOGPROBS:
        raise InvalidArgumentError(
            f"{prefix}prompt_logprobs, or logprobs with echo: an answer may have at most {MAX_PROMPT_LOGPROBS} of the "
            f"prompts' tokens and of their alternatives, this one would have {count}",
            field=prefix + "prompt_logprobs",
        )


def check_context(prompt_tokens: int, sampling: Sampling, info: VerifyInfo, *, field: str, prefix: str = "") -> None:
    """Raise if the prompt is empty, or with the output asked for does not fit the model's context."""
    if prompt_tokens == 0:
        raise InvalidArgumentError(f"{field} is empty", field=field)
    wanted = max(1, sampling.max_tokens or 0)
    if prompt_tokens + wanted > info.max_context:
        asked = "at least 1" if sampling.max_tokens is None else str(sampling.max_tokens)
        raise ContextLengthError(
            f"the model's context is {info.max_context} tokens; the prompt has {prompt_tokens} and the output "
            f"asks for {asked}, {prompt_tokens + wanted} together",
            field=field if prompt_tokens >= info.max_context else prefix + "max_tokens",
        )
    if (sampling.min_tokens or 0) > info.max_context - prompt_tokens:
        raise ContextLengthError(
            f"{prefix}min_tokens is {sampling.min_tokens}, but the context of {info.max_context} tokens leaves "
            f"{info.max_context - prompt_tokens} after the prompt",
            field=prefix + "min_tokens",
        )
