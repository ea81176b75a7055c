"""What a client asks of the gateway and what comes back, in the gateway's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.generation_types import FinishReason, PositionLogprobs, SpeculationOptions, SpeculationStep, Timings
from slipstream.request_context import NO_CONTEXT, RequestContext

if TYPE_CHECKING:
    from gateway.core.prompt_logprobs import PromptLogprobs
    from gateway.output_parsers.parts import AnswerPart
    from gateway.output_parsers.registry import AnswerForm
    from slipstream.grammar.grammar import Grammar
    from slipstream.prefix_hash import PromptHashes
    from slipstream.rpc.errors import SlipstreamError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. None: the default of slipstream/v1/sampling.proto."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """One choice to generate: everything a verify service needs, and the stop strings that only the gateway knows.

    `weight` is the tenant's, by which it shares the service with others. `context` decides on no token. `answer` says
    how the text is split into reasoning, content and calls, if at all.
    """

    prompt_token_ids: Sequence[int]
    sampling: Sampling
    speculation: SpeculationOptions | None = None
    stop: tuple[str, ...] = ()
    tenant: str = ""
    adapter_id: str = ""
    choice_index: int = 0
    weight: float = 1.0
    context: RequestContext = NO_CONTEXT
    prompt_wire: bytes = b""
    """The prompt as the bytes of a SessionRequest whose Submit has these token ids alone, where it has been encoded
    elsewhere. Empty: it has not."""
    grammar_wire: bytes = b""
    """The grammar of `sampling` in the same way, as choices of one request share it."""
    answer: AnswerForm | None = None
    prompt_hashes: PromptHashes | None = None
    """Those of the prompt, where it was hashed as it was tokenised."""


@dataclass(slots=True)
class StepOutput:
    """What one verify step yielded for one choice; or, before any token, a part of its prompt's logprobs alone."""

    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    step: SpeculationStep | None = None
    finish_reason: FinishReason | None = None
    cached_tokens: int | None = None
    timings: Timings | None = None
    error: SlipstreamError | None = None


@dataclass(slots=True)
class Delta:
    """What one step adds to the output of one choice, cut at the token that decides the end.

    Those that come before any token may have a part of the prompt's logprobs instead. `parts` are what the text comes
    to where the request has it split; `finish_reason` is that of the text, be there calls or not.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    step: SpeculationStep | None = None
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    stop_token_id: int | None = None
    timings: Timings | None = None
    parts: list[AnswerPart] | None = None


@dataclass(frozen=True, slots=True)
class ReportedProposer:
    """A proposer as the verify service reports it. preparing: the service still does work ahead for its requests."""

    name: str
    attached: bool
    preparing: bool = False


@dataclass(frozen=True, slots=True)
class ProposerRefusal:
    """A proposer that a draft service has and does not draft with, and why."""

    proposer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drafter:
    """One proposer of one attached draft service, as the verify service counts; see DrafterState in verify.proto."""

    name: str
    proposer: str
    epoch: int
    address: str
    transport: str
    requests: int
    share: float
    drafted_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What a verify service has to do at the moment, and who drafts for it."""

    running: int = 0
    queued: int = 0
    drafters: tuple[Drafter, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """A LoRA adapter that a verify service has loaded. `id` is its name and what its content hashes to."""

    name: str
    id: str
    rank: int


@dataclass(frozen=True, slots=True)
class VerifyInfo:
    """Facts about the model that a verify service stated."""

    model_name: str
    fingerprint: str
    vocab_size: int
    max_context: int
    max_nodes: int
    max_requests: int  # that run or queue there
    eos_token_ids: frozenset[int]
    proposers: tuple[ReportedProposer, ...]
    default_proposer: str
    build: tuple[str, ...] = ()
    """What besides the model decides on bits: version, device type, mode, attention, tensor parallel size, and how keys
    and values are held."""
    refusals: tuple[ProposerRefusal, ...] = ()
    max_running: int = 0
    """Requests that are decoded together there."""
    page_size: int = 0
    """Tokens of a KV page; 0 where the service tells nothing of its prefix cache."""
    watched: bool = False
    """Whether the gateway has it tell of its prefix cache, so that prompts are to be hashed."""
    serving_seconds: float = 0.0
    """For how long the service had taken requests as it stated them."""
    adapters: tuple[ServedAdapter, ...] = ()
    adapters_version: int = 0
    """Grows with each change of what the service has loaded."""

    @property
    def exact(self) -> bool:
        """Whether a token depends on its request alone."""
        return "exact" in self.build

    def adapter(self, name_or_id: str) -> ServedAdapter | None:
        """The adapter of a name or an id, where the service has it."""
        return next((each for each in self.adapters if name_or_id in (each.name, each.id)), None)

    def continues(self, other: VerifyInfo) -> bool:
        """Whether this service decides the very tokens that the other one would."""
        return (self.fingerprint, self.build) == (other.fingerprint, other.build)
