"""Bodies of the OpenAI API's requests: what is taken, its types and ranges. Unknown fields are refused unless null.

Lists fail at their first bad entry, so that a body makes few errors, however long it is.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.core import limits
from gateway.core.request import Sampling
from gateway.openai.fields import (
    Body,
    ChatFields,
    CommonFields,
    CompletionFields,
    Supported,
)
from gateway.openai.messages import ChatMessage
from gateway.openai.structured import ResponseFormat, StructuredOutputs
from gateway.openai.tools import ToolChoice, ToolPolicy, Tools, check_tools, tool_policy
from slipstream import generation_types

TokenId = Annotated[int, Field(ge=0, le=2**32 - 1)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Name = Annotated[str, Field(max_length=limits.MAX_NAME_BYTES)]
Bias = Annotated[float, Field(ge=limits.BIAS.low, le=limits.BIAS.high)]
BiasKey = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,8})$")]
StopString = Annotated[str, Field(min_length=1, max_length=limits.MAX_STOP_LENGTH)]
StopList = Annotated[list[StopString], Field(max_length=limits.MAX_STOP_STRINGS, fail_fast=True)]
Penalty = Annotated[float, Field(ge=limits.PENALTY.low, le=limits.PENALTY.high)]
TokenCount = Annotated[int, Field(ge=0, le=limits.MAX_INT)]
LogprobCount = Annotated[int, Field(ge=0, le=20)]


class StreamOptions(Body):
    """Options of a streamed answer. Others are ignored: they change its chunks, not the text."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = Field(None, description="Send a last chunk with the usage and no choices.")


class SpeculationOptions(Body):
    """What the request says about speculation; a field left out takes the operator's default."""

    enabled: bool | None = None
    proposer: Name | None = Field(None, description="A proposer that is configured or attached.")
    max_nodes: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Rows a verify step may spend on this request, the root included."
    )
    max_depth: Annotated[int, Field(ge=0, le=63)] | None = Field(None, description="Longest path below the root.")
    trace: bool | None = Field(
        None, description="Tell with each chunk of a stream what its verify step verified: `trace` of each choice."
    )


class GenerationBody(CommonFields):
    """What chat and plain completions have in common."""

    model: str = Field(description="Name of the model, as /v1/models lists it.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = Field(None, description="Choices to generate for each prompt.")
    max_tokens: TokenCount | None = Field(
        None, description="Default: as many as the context holds. 0 only with prompt_logprobs, or echo."
    )
    max_completion_tokens: TokenCount | None = Field(None, description="The newer name of max_tokens.")
    temperature: Annotated[float, Field(ge=limits.TEMPERATURE.low, le=limits.TEMPERATURE.high)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[BiasKey, Bias] | None = Field(
        None, max_length=limits.MAX_BIASES, description="Token id to a bias added to its raw logit."
    )
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] | None = Field(
        None, description="The output is a function of it. Drawn and reported if left out."
    )
    stop: StopString | StopList | None = None
    user: Name | None = Field(None, description="Tenant whose prefix cache is used, where no API keys are configured.")

    top_k: Annotated[int, Field(ge=-1, le=limits.MAX_INT)] | None = Field(None, description="0 and -1 keep all.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=limits.REPETITION_PENALTY.high)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=limits.MAX_INT)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=limits.MAX_STOP_TOKENS, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: LogprobCount | None = Field(
        None, description="Report the logprobs of the prompt's tokens, with so many likely ones. Not in a stream."
    )
    speculation: SpeculationOptions | None = None

    response_format: ResponseFormat | None = Field(None, description="What the text of the answer has to match.")
    structured_outputs: StructuredOutputs | None = Field(None, description="The same, with more kinds, as in vLLM.")

    prompt_field: ClassVar[str]

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "stream_options is only allowed when stream is true")
        return self

    @model_validator(mode="after")
    def _traces_need_stream(self) -> GenerationBody:
        if self.speculation is not None and self.speculation.trace and not self.stream:
            raise PydanticCustomError("speculation.trace", "speculation.trace is only allowed when stream is true")
        return self

    @model_validator(mode="after")
    def _prompt_logprobs_fit_the_rest(self) -> GenerationBody:
        if self.prompt_logprobs is not None and self.stream:
            raise PydanticCustomError("prompt_logprobs", "prompt_logprobs is not available when stream is true")
        if self.output_limit == 0 and self.prompt_top_count is None:
            name: Literal["max_tokens", "max_completion_tokens"]
            name = "max_completion_tokens" if self.max_tokens is None else "max_tokens"
            raise PydanticCustomError(
                name,
                "{name}: input should be greater than or equal to 1 unless the prompt is asked for, by prompt_logprobs "
                "or in plain completions echo",
                {"name": name},
            )
        return self

    @property
    def choices_per_prompt(self) -> int:
        """n, or 1."""
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, however written."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def output_limit(self) -> int | None:
        """Most tokens of the output, where stated."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def top_count(self) -> int | None:
        """How many likely tokens to report at each position; None without logprobs."""
        raise NotImplementedError

    @property
    def prompt_top_count(self) -> int | None:
        """How many likely tokens to compute at each position of the prompt; None without its logprobs."""
        return self.prompt_logprobs

    def sampling(self) -> Sampling:
        """The sampling parameters."""
        return Sampling(
            temperature=self.temperature,
            top_k=None if self.top_k is None else max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={int(token_id): bias for token_id, bias in (self.logit_bias or {}).items()},
            max_tokens=self.output_limit,
            min_tokens=self.min_tokens,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=self.top_count,
            prompt_logprobs=self.prompt_top_count,
        )

    def speculation_wish(self) -> generation_types.SpeculationOptions | None:
        """What the request says about speculation."""
        wish = self.speculation
        if wish is None:
            return None
        return generation_types.SpeculationOptions(
            wish.enabled, wish.proposer or "", wish.max_nodes, wish.max_depth, bool(wish.trace)
        )


class ToolFields(Body):
    """What a conversation's prompt says beside its messages."""

    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Given to a chat template that knows it; medium is taken by every one."
    )


class ChatCompletionRequest(GenerationBody, ChatFields, ToolFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1)
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = Field(None, description="Above 0 it needs logprobs.")
    modalities: Annotated[
        Annotated[list[Literal["text"]], Field(fail_fast=True)] | None, Supported("is supported as text only")
    ] = None

    tool_choice: ToolChoice | None = Field(
        None, description="Default: auto where there are tools. With none the prompt does not have them."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="Default: true. False: an answer calls one tool at most."
    )
    include_reasoning: bool | None = Field(None, description="Default: true. False: leave it out of the answer.")

    prompt_field: ClassVar[str] = "messages"

    @model_validator(mode="after")
    def _choice_is_among_tools(self) -> ChatCompletionRequest:
        check_tools(self.tools or (), self.tool_choice)
        return self

    @property
    def tool_policy(self) -> ToolPolicy:
        """What calls the answer may have."""
        return tool_policy(self.tools or (), self.tool_choice, parallel=self.parallel_tool_calls is not False)

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs is only allowed when logprobs is true")
        return self

    @property
    def top_count(self) -> int | None:
        """See GenerationBody."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationBody, CompletionFields):
    """Body of POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, fail_fast=True)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]
    ) = Field(description="A text, token ids, or several of either.")
    logprobs: LogprobCount | None = None
    echo: bool | None = Field(None, description="Put the prompt before the text, and its logprobs before the text's.")
    best_of: int | None = Field(None, description="Supported only where it equals n.")

    prompt_field: ClassVar[str] = "prompt"

    @model_validator(mode="after")
    def _best_of_is_n(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.choices_per_prompt:
            raise PydanticCustomError("best_of", "best_of is supported only where it equals n")
        return self

    @property
    def top_count(self) -> int | None:
        """See GenerationBody."""
        return self.logprobs

    @property
    def prompt_top_count(self) -> int | None:
        """See GenerationBody. An echo without output takes them too: nothing else has a prompt computed alone."""
        asked = [self.prompt_logprobs, self.logprobs if self.echo else None]
        if self.echo and self.output_limit == 0:
            asked.append(0)
        return max((count for count in asked if count is not None), default=None)

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one or several."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if all(isinstance(entry, int) for entry in prompt):
            return [[entry for entry in prompt if isinstance(entry, int)]]
        return [entry for entry in prompt if isinstance(entry, str | list)]
