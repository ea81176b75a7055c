"""What a client asks of the verify loop and what it is answered, in the loop's own types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from slipstream.generation_types import (
    FinishReason,
    PositionLogprobs,
    SpeculationOptions,
    SpeculationStep,
    Timings,
    Usage,
)
from slipstream.grammar.grammar import Grammar
from slipstream.request_context import NO_CONTEXT, RequestContext
from slipstream.rpc.errors import SlipstreamError
from verify_service.core.prompt_scores import PromptScores

_NOTHING_SAID: Final = SpeculationOptions()


class RequestKey(NamedTuple):
    """Names a request: the client's session, and the id the client chose within it."""

    session_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen; ranges and meaning are those of slipstream/v1/sampling.proto.

    `seed` is None until one is assigned at admission; `max_tokens` None means as many as the context holds;
    `logprobs` None means none, 0 the chosen token's alone; so do `prompt_logprobs`, of the prompt's tokens, without
    which `max_tokens` is at least 1. `logit_bias` holds (token id, bias) pairs. `grammar` None allows any output.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether tokens are chosen among those that are likely enough, so that a mask changes which these are."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as it arrives.

    `output_token_ids` were output before, by this service or another: they count as output for penalties,
    positions and limits, and are not sent again. `arrival` is time.monotonic() in seconds. `weight` is the tenant's,
    by which it shares the service with others. `context` names the request in logs and traces.
    """

    key: RequestKey
    prompt_token_ids: tuple[int, ...]
    arrival: float
    output_token_ids: tuple[int, ...] = ()
    sampling: SamplingParams = SamplingParams()
    speculation: SpeculationOptions = _NOTHING_SAID
    tenant: str = ""
    adapter_id: str = ""
    choice_index: int = 0
    weight: float = 1.0
    context: RequestContext = NO_CONTEXT


@dataclass(slots=True)
class StepOutput:
    """What one step yielded for one request.

    `usage`, `timings` and `finish_reason` are set on a request's last output, `error` with FinishReason.ERROR,
    `seed` on the first output that carries tokens. `logprobs` has one entry a token where they were asked for. The
    prompt's own come before the first token, in order, in outputs of nothing else.
    """

    key: RequestKey
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    step: SpeculationStep | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: SlipstreamError | None = None
    seed: int | None = None
    prompt_scores: PromptScores | None = None

    @property
    def is_tokens_alone(self) -> bool:
        """Whether it has nothing but tokens, and what the step did for them."""
        told = self.logprobs or self.finish_reason or self.usage or self.timings or self.error or self.prompt_scores
        return not told and self.seed is None
