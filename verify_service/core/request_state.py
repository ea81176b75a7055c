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
    """Mutable state of one admitted request.

    `tokens` is prompt and output; `pending` counts tokens that steps under way decide, whose values are not known yet.
    `spread` is how many more than these they decide at most. `untold` of the last tokens its drafter has not been told,
    which was asked for a tree of `asked_rows` last. `pages`, the first of which belong to `lease` and the others to the
    request, hold the KV of `settled` tokens, and once all steps under way are decided that of `computed`. `computed`
    stays below `length`: the last token's KV is written by the step that uses it. `sampling.seed` is set. `limit` is
    the number of tokens at which the output ends for length. `line` is the row of the page table and of the sampling
    table while the request runs, else -1. `adaptive` leaves the size of trees to the node budget. While a request
    `rests` its drafter is told nothing of it. One whose drafter is `behind` gets no tree before that has caught up.
    `gone` says that the loop has let go of it. `tenant` is whose share of the service the request counts to, "" where
    requests of all tenants are served in order of arrival. `most_rows` bounds the next tree, root included, where the
    last one was cut for another tenant's share; else 0. `scored` of the prompt's tokens after the first have had their
    logprobs decided, where these were asked for.
    """

    request: GenerationRequest
    ticket: int
    sampling: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    limit: int
    proposer: str
    max_nodes: int
    max_depth: int
    adaptive: bool
    tokens: list[int]
    computed: int = 0
    settled: int = 0
    pending: int = 0
    spread: int = 0
    line: int = -1
    pages: list[int] = field(default_factory=list)
    lease: PrefixHandle | None = None
    begun: bool = False
    prefilled: bool = False
    wants_tree: bool = False
    asked_rows: int = 0
    untold: int = 0
    rests: bool = False
    behind: bool = False
    acceptance: Acceptance = field(default_factory=Acceptance)
    seed_told: bool = False
    cached_tokens: int = 0
    verify_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    gone: bool = False
    tenant: str = ""
    most_rows: int = 0
    scored: int = 0

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
        return len(self.tokens) + self.pending

    @property
    def remaining(self) -> int:
        """Tokens whose KV no step has been given to write; 1 while decoding."""
        return self.length - self.computed

    @property
    def reusable(self) -> int:
        """Tokens, from the first on, whose KV may be another's: those whose logits nobody wants."""
        if self.sampling.prompt_logprobs is not None and self.scored < self.prompt_length - 1:
            return self.scored
        return len(self.tokens) - 1

    @property
    def only_scores(self) -> bool:
        """Whether nothing but the prompt's logprobs is wanted: the token that its last row decides is dropped."""
        return self.sampling.max_tokens == 0

    def unscored(self, first: int, end: int) -> range:
        """Of these positions those whose logits tell logprobs that are still wanted."""
        if self.sampling.prompt_logprobs is None:
            return _NOTHING
        return range(max(first, self.scored), min(end, self.prompt_length - 1))

    @property
    def depth_left(self) -> int:
        """Longest path of drafted tokens that could still be output, after which a bonus token fits."""
        return min(self.max_depth, self.limit - self.length - 1)

    @property
    def over(self) -> FinishReason | None:
        """Why no further token is due, judged by the last output token; None while one is."""
        if len(self.tokens) > self.prompt_length and self.tokens[-1] in self.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= self.limit else None
