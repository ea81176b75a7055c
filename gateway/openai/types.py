"""Bodies of the OpenAI API's answers. They are written by gateway.openai.output and described in the API's document."""

from __future__ import annotations

from typing import Literal, NotRequired

# pydantic reads required keys of typing.TypedDict rightly from Python 3.12 on only
from typing_extensions import TypedDict


class PromptTokensDetails(TypedDict):
    """Part of Usage."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """Part of Usage."""

    reasoning_tokens: int


class Usage(TypedDict):
    """Tokens over all choices; verify_steps, drafted_tokens and accepted_tokens are an extension."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    verify_steps: int
    drafted_tokens: int
    accepted_tokens: int
    completion_tokens_details: NotRequired[CompletionTokensDetails]


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


class TracedToken(TypedDict):
    """An output token, the characters that it completed, and how it came; `proposer`: of one that was drafted."""

    token_id: int
    text: str
    origin: Literal["target", "draft", "bonus"]
    proposer: str | None


class TracedTree(TypedDict):
    """What was drafted; lists by node, parents before children.

    `token_ids`: null where the token may be another request's and was not accepted. `texts`: of each token alone.
    `parents`: -1 is the root, the last token before the step. `log_probs`: natural logarithm of each path's probability
    as its proposer saw it, null where that is not known. `accepted`: indices of the nodes that became output, in order.
    """

    token_ids: list[int | None]
    texts: list[str]
    parents: list[int]
    log_probs: list[float] | None
    proposers: list[str]
    accepted: list[int]


class StepTrace(TypedDict):
    """Extension: what one verify step did for a choice. `position`: output tokens before its own.

    `tree` is null where nothing was drafted. `rows` are the choice's, root included; `pass_rows` and `pass_seconds`
    those of the whole pass, other requests included.
    """

    position: int
    proposer: str
    tokens: list[TracedToken]
    tree: TracedTree | None
    rows: int
    pass_rows: int
    pass_seconds: float


class ChoiceEnd(TypedDict):
    """What every choice says of its end. `stop_reason`: the stop string or stop token id that ended it."""

    index: int
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    speculation: NotRequired[Speculation]
    trace: NotRequired[StepTrace]


class CalledFunction(TypedDict):
    """A function and its arguments, as JSON."""

    name: str
    arguments: str


class CalledCustomTool(TypedDict):
    """A custom tool and its input."""

    name: str
    input: str


class ToolCall(TypedDict):
    """A call that the model asks for: of a function or of a custom tool, as `type` says."""

    id: str
    type: Literal["function", "custom"]
    function: NotRequired[CalledFunction]
    custom: NotRequired[CalledCustomTool]


class AssistantMessage(TypedDict):
    """The answer of a chat. `reasoning` and `reasoning_content` are an extension."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(ChoiceEnd):
    """One answer."""

    message: AssistantMessage
    logprobs: ChatLogprobs | None


class FunctionDelta(TypedDict):
    """A name, and a fragment of arguments."""

    name: NotRequired[str]
    arguments: str


class CustomToolDelta(TypedDict):
    """A name, and input."""

    name: NotRequired[str]
    input: str


class ToolCallDelta(TypedDict):
    """What a chunk adds to a call. `index` is the call's place; id, type and name come with its first chunk."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function", "custom"]]
    function: NotRequired[FunctionDelta]
    custom: NotRequired[CustomToolDelta]


class ChatDelta(TypedDict):
    """What a chunk adds to an answer: content, reasoning or a call."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


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
    """A model, or a LoRA adapter of the model `parent`. All from max_model_len on is an extension."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parent: str | None
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


class DrafterReport(TypedDict):
    """One proposer of one attached draft service: requests it drafts for, its share of them, and what came of it."""

    name: str
    proposer: str
    epoch: int
    transport: str
    requests: int
    share: float
    drafted_tokens: int
    accepted_tokens: int


class ServiceReport(TypedDict):
    """A verify service; `model` is null while it is away."""

    address: str
    ready: bool
    model: str | None
    version: str
    device: str
    mode: str
    serving_seconds: float
    running: int
    queued: int
    drafters: list[DrafterReport]


class Services(TypedDict):
    """Answer of /services. `status` and `missing_proposers`: as of /ready; `shares_allowed`: of /services/share."""

    status: str
    missing_proposers: list[MissingProposer]
    shares_allowed: bool
    verify_services: list[ServiceReport]


class ShareSet(TypedDict):
    """Answer of /services/share: the share that the draft service has taken note of."""

    share: float


class AdapterUnloaded(TypedDict):
    """Answer of /v1/unload_lora_adapter: the adapter that went."""

    unloaded: str


class Readiness(Health):
    """Answer of /ready. `status` is "ready", or the reason why not; proposers that are missing cost speed alone."""

    missing_proposers: list[MissingProposer]
