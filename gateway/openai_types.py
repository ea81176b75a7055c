"""Bodies of the OpenAI API's answers. They are written by gateway.openai_output and described in the API's document."""

from __future__ import annotations

from typing import Literal, NotRequired

# pydantic reads required keys of typing.TypedDict rightly from Python 3.12 on only
from typing_extensions import TypedDict


class PromptTokensDetails(TypedDict):
    """Part of Usage."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens over all choices; the last three are an extension."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    verify_steps: int
    drafted_tokens: int
    accepted_tokens: int


class Speculation(TypedDict):
    """Extension: what speculation did for a choice. acceptance_length is tokens a verify step, bonus included."""

    verify_steps: int
    drafted_tokens: int
    accepted_tokens: int
    acceptance_length: float


class TopLogprob(TypedDict):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TypedDict):
    """The chosen token of a position and the likely ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Logprobs of a chat choice."""

    content: list[ChatLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    """Logprobs of a plain choice."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(TypedDict):
    """Of a token of the prompt, or of a likely one in its place. `rank`: 1 is the most likely."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Extension: by token of the prompt, by token id, the token itself and the likely ones; null for the first token."""


class ChoiceEnd(TypedDict):
    """What every choice says of its end. `stop_reason`: the stop string or stop token id that ended it."""

    index: int
    finish_reason: Literal["stop", "length"] | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    speculation: NotRequired[Speculation]


class AssistantMessage(TypedDict):
    """The answer of a chat."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(ChoiceEnd):
    """One answer."""

    message: AssistantMessage
    logprobs: ChatLogprobs | None


class ChatDelta(TypedDict):
    """What a chunk adds to an answer."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoice(ChoiceEnd):
    """Part of one answer."""

    delta: ChatDelta
    logprobs: ChatLogprobs | None


class CompletionChoice(ChoiceEnd):
    """One text, or in a chunk part of one."""

    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class Head(TypedDict):
    """What every answer and chunk begins with. `seed` is the one in force, an extension."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    seed: int


class ChatCompletion(Head):
    """Answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class ChatCompletionChunk(Head):
    """One event of a streamed answer of /v1/chat/completions."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[list[int]]


class Completion(Head):
    """Answer of /v1/completions, and with `usage` at the end only, one event of its stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class ModelEntry(TypedDict):
    """A model. All from max_model_len on is an extension."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    proposers: list[str]
    default_proposer: str | None


class ModelList(TypedDict):
    """Answer of /v1/models."""

    object: Literal["list"]
    data: list[ModelEntry]


class Tokens(TypedDict):
    """Answer of /tokenize. `max_model_len` is the model's context; `token_strs` are null unless asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedText(TypedDict):
    """Answer of /detokenize."""

    prompt: str


class Version(TypedDict):
    """Answer of /version."""

    version: str


class ErrorBody(TypedDict):
    """What went wrong: in words, by kind, in which field, and by a code for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(TypedDict):
    """Body of every answer that is not 200."""

    error: ErrorBody


class Health(TypedDict):
    """Answer of /health."""

    status: str
    process_id: int


class MissingProposer(TypedDict):
    """A proposer that drafts nothing at one verify service, and why."""

    proposer: str
    verify_service: str
    reason: str


class Readiness(Health):
    """Answer of /ready. `status` is "ready", or the reason why not; proposers that are missing cost speed alone."""

    missing_proposers: list[MissingProposer]
