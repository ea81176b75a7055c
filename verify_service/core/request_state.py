"""A request on its way through the loop: what was asked, its tokens, its KV, its drafting and its figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.generation_types import FinishReason
from verify_service.core.acceptance import VerifiedTree
from verify_service.core.acceptance_history import AcceptanceHistory
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.grammar.request_grammar import RequestGrammar
from verify_service.kv_cache.prefix_cache import Namespace, PrefixHandle

_NOTHING = range(0)


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """What an admitted request runs with, defaults and limits of the service filled in."""

    arrival_number: int
    """Counts admitted requests: the lower one came first."""
    sampling: SamplingParams
    """Parameters of sampling; `sampling.seed` is set."""
    seed: int
    stop_token_ids: frozenset[int]
    max_length: int
    """Number of tokens, prompt included, at which the output ends for length."""
    tenant: str = ""
    """Whose share of the service the request counts to; "" where all tenants are served in order of arrival."""
    adapter_slot: int = -1
    """Where the model holds the request's LoRA adapter; -1: it has none."""


@dataclass(slots=True, eq=False)
class KvState:
    """Where a request's keys and values are, and how far they reach. The KV cache manager and the loop write it.

        KV      |-- num_written_tokens --|-- steps under way --| num_computed_tokens
        pages   |-- prefix_lease --|-- own pages ---------------------------------->|

    The last token's KV is written by the step that uses the token.
    """

    num_computed_tokens: int = 0
    """Tokens whose KV is written once all steps under way are decided."""
    num_written_tokens: int = 0
    """Tokens whose KV decided steps have written."""
    pages: list[int] = field(default_factory=list)
    prefix_lease: PrefixHandle | None = None
    req_index: int = -1
    """Row of the page table and of the sampling table while the request runs, else -1."""


@dataclass(slots=True, eq=False)
class DraftState:
    """How trees are drafted for a request, and what its drafter knows. The speculation policy writes it."""

    proposer: str = ""
    """Name of the proposer that drafts; "" for plain decoding."""
    max_nodes: int = 1
    """Bound on a tree's rows, root included."""
    max_depth: int = 0
    adaptive: bool = False
    """Whether the goodput optimizer sizes the trees."""
    awaiting_tree: bool = False
    """Whether the next step takes a tree that was asked for."""
    requested_rows: int = 0
    """Rows of the tree requested last."""
    max_tree_rows: int = 0
    """Bound on the next tree's rows, root included, after a cut for another tenant's share; else 0."""
    num_unsent_tokens: int = 0
    """Last tokens that the drafter was not sent."""
    unsent_verified: tuple[VerifiedTree, ...] = ()
    """Trees of the drafter that steps verified, which it was not told. The loop adds to them."""
    paused: bool = False
    """Whether the drafter is sent nothing of this request."""
    catching_up: bool = False
    """Whether the drafter lacks older tokens or states, and is asked for no tree until it has them."""
    acceptance: AcceptanceHistory = field(default_factory=AcceptanceHistory)


@dataclass(slots=True, eq=False)
class RequestStats:
    """Counts and times of a request, of which its usage and timings tell. Times are seconds of `time.monotonic`."""

    cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache when the request started."""
    verify_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    scheduled_at: float = 0.0
    first_token_at: float = 0.0


@dataclass(slots=True, eq=False)
class RequestState:
    """Mutable state of one admitted request, owned by the loop's thread.

        tokens  |---- prompt ----|---- output ----|- placeholders -|-- drafts in flight --|
                0          prompt_length    len(tokens)          length   length + max_inflight_drafts
        KV      |------------- kv.num_computed_tokens < length ----|

    num_output_placeholders: tokens that steps under way decide, whose values are unknown.
    max_inflight_drafts: drafted tokens that steps under way may accept besides.
    num_scored_tokens: prompt tokens after the first with decided logprobs, where these were requested.
    started: a step was given rows of the request, and its drafter was told of it.
    prefilled: its prompt, or after a preemption all its tokens, went through the model.
    finished: the loop has let go of the request.
    grammar: what the output is held to; None where it is free. Set before the request is queued.
    """

    request: GenerationRequest
    parameters: RequestParameters
    tokens: list[int]
    kv: KvState = field(default_factory=KvState)
    draft: DraftState = field(default_factory=DraftState)
    stats: RequestStats = field(default_factory=RequestStats)
    num_output_placeholders: int = 0
    max_inflight_drafts: int = 0
    num_scored_tokens: int = 0
    started: bool = False
    prefilled: bool = False
    finished: bool = False
    seed_sent: bool = False
    grammar: RequestGrammar | None = None
    key: RequestKey = field(init=False)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.request.key
        self.prompt_length = len(self.request.prompt_token_ids)

    @property
    def output_tokens(self) -> list[int]:
        """Tokens output so far, those of the request's earlier life included."""
        return self.tokens[self.prompt_length :]

    @property
    def output_length(self) -> int:
        """How many these are."""
        return len(self.tokens) - self.prompt_length

    @property
    def unfollowed(self) -> tuple[RequestGrammar, list[int]] | None:
        """Its grammar and the output that this has yet to be brought to; None where it stands there or there is none.

        The output is copied only where it is needed.
        """
        grammar = self.grammar
        return None if grammar is None or grammar.is_at(self.output_length) else (grammar, self.output_tokens)

    def follow_output(self) -> None:
        """Bring its grammar, if it has one, to its output; raises as `RequestGrammar.follow_output`."""
        if (behind := self.unfollowed) is not None:
            grammar, output = behind
            grammar.follow_output(output)

    @property
    def namespace(self) -> Namespace:
        return self.request.tenant, self.request.adapter_id

    @property
    def length(self) -> int:
        """Tokens so far, and one for each step under way that decides."""
        return len(self.tokens) + self.num_output_placeholders

    @property
    def num_unscheduled_tokens(self) -> int:
        """Tokens whose KV no step has been given to write; 1 while decoding."""
        return self.length - self.kv.num_computed_tokens

    @property
    def num_reusable_tokens(self) -> int:
        """Tokens, from the first on, whose KV may be another's: those whose logits nobody wants."""
        if self.parameters.sampling.prompt_logprobs is not None and self.num_scored_tokens < self.prompt_length - 1:
            return self.num_scored_tokens
        return len(self.tokens) - 1

    @property
    def only_scores(self) -> bool:
        """Whether nothing but the prompt's logprobs is wanted: the token that its last row decides is dropped."""
        return self.parameters.sampling.max_tokens == 0

    def unscored(self, first: int, end: int) -> range:
        """Of these positions those whose logits tell logprobs that are still wanted."""
        if self.parameters.sampling.prompt_logprobs is None:
            return _NOTHING
        return range(max(first, self.num_scored_tokens), min(end, self.prompt_length - 1))

    @property
    def depth_left(self) -> int:
        """Longest path of drafted tokens that could still be output, after which a bonus token fits."""
        left = self.parameters.max_length - len(self.tokens) - self.num_output_placeholders - 1
        return min(self.draft.max_depth, left)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why no further token is due, judged by the last output token; None while one is."""
        if len(self.tokens) > self.prompt_length and self.tokens[-1] in self.parameters.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= self.parameters.max_length else None
