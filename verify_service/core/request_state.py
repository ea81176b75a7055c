"""A request on its way through the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.generation_types import FinishReason
from verify_service.core.acceptance import Acceptance
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.kv_cache.prefix_cache import Namespace, PrefixHandle

_NOTHING = range(0)


@dataclass(slots=True, eq=False)
class RequestState:
    """Mutable state of one admitted request, owned by the loop's thread.

        tokens  |---- prompt ----|---- output ----|- placeholders -|-- drafts in flight --|
                0          prompt_length    len(tokens)          length   length + max_inflight_drafts
        KV      |-- num_written_tokens --|-- under way --| num_computed_tokens < length
        pages   |-- prefix_lease --|-- own pages --------------------------------->|

    num_output_placeholders: tokens that steps under way decide, whose values are unknown.
    max_inflight_drafts: drafted tokens that steps under way may accept besides.
    num_computed_tokens: tokens whose KV is written once all steps under way are decided.
    num_written_tokens: tokens whose KV decided steps have written.
    num_scored_tokens: prompt tokens after the first with decided logprobs, where these were requested.
    num_unsent_tokens: last tokens that the drafter was not sent.
    req_index: row of the page table and of the sampling table while the request runs, else -1.
    max_length: number of tokens, prompt included, at which the output ends for length.
    adaptive: the goodput optimizer sizes the trees.
    requested_rows: rows of the tree requested last.
    max_tree_rows: bound on the next tree's rows, root included, after a cut for another tenant's share; else 0.
    drafting_paused: the drafter is sent nothing of this request.
    drafter_catching_up: the drafter lacks older tokens or states, and is asked for no tree until it has them.
    tenant: whose share of the service the request counts to; "" where all tenants are served in order of arrival.
    finished: the loop has let go of the request.

    `sampling.seed` is set. The last token's KV is written by the step that uses the token.
    """

    request: GenerationRequest
    arrival_number: int
    sampling: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    max_length: int
    proposer: str
    max_nodes: int
    max_depth: int
    adaptive: bool
    tokens: list[int]
    num_computed_tokens: int = 0
    num_written_tokens: int = 0
    num_output_placeholders: int = 0
    max_inflight_drafts: int = 0
    req_index: int = -1
    pages: list[int] = field(default_factory=list)
    prefix_lease: PrefixHandle | None = None
    started: bool = False
    prefilled: bool = False
    awaiting_tree: bool = False
    requested_rows: int = 0
    num_unsent_tokens: int = 0
    drafting_paused: bool = False
    drafter_catching_up: bool = False
    acceptance: Acceptance = field(default_factory=Acceptance)
    seed_sent: bool = False
    cached_tokens: int = 0
    verify_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    finished: bool = False
    tenant: str = ""
    max_tree_rows: int = 0
    num_scored_tokens: int = 0

    @property
    def key(self) -> RequestKey:
        return self.request.key

    @property
    def namespace(self) -> Namespace:
        return self.request.tenant, self.request.adapter_id

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def length(self) -> int:
        """Tokens so far, and one for each step under way that decides."""
        return len(self.tokens) + self.num_output_placeholders

    @property
    def num_unscheduled_tokens(self) -> int:
        """Tokens whose KV no step has been given to write; 1 while decoding."""
        return self.length - self.num_computed_tokens

    @property
    def num_reusable_tokens(self) -> int:
        """Tokens, from the first on, whose KV may be another's: those whose logits nobody wants."""
        if self.sampling.prompt_logprobs is not None and self.num_scored_tokens < self.prompt_length - 1:
            return self.num_scored_tokens
        return len(self.tokens) - 1

    @property
    def only_scores(self) -> bool:
        """Whether nothing but the prompt's logprobs is wanted: the token that its last row decides is dropped."""
        return self.sampling.max_tokens == 0

    def unscored(self, first: int, end: int) -> range:
        """Of these positions those whose logits tell logprobs that are still wanted."""
        if self.sampling.prompt_logprobs is None:
            return _NOTHING
        return range(max(first, self.num_scored_tokens), min(end, self.prompt_length - 1))

    @property
    def depth_left(self) -> int:
        """Longest path of drafted tokens that could still be output, after which a bonus token fits."""
        return min(self.max_depth, self.max_length - self.length - 1)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why no further token is due, judged by the last output token; None while one is."""
        if len(self.tokens) > self.prompt_length and self.tokens[-1] in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= self.max_length else None
