"""Whether a request may enter, and what its unset fields become."""

from __future__ import annotations

import secrets
from dataclasses import replace

from slipstream.generation_types import SpeculationOptions
from slipstream.rpc.errors import InvalidArgumentError
from slipstream_kernels.token_tree import MAX_ROWS
from verify_service.core.adapters import LoadedAdapters
from verify_service.core.draft_source import DraftSource
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest
from verify_service.core.request_state import DraftState, RequestParameters, RequestState
from verify_service.core.sampling_validation import check_range, check_tokens, validate_sampling

MAX_NAME_BYTES = 256
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0


class Admission:
    """Turns requests into states, or refuses them. Holds nothing that changes but the tickets it gives."""

    def __init__(
        self,
        config: EngineConfig,
        trees: DraftSource,
        adapters: LoadedAdapters | None = None,
        *,
        vocab_size: int,
        max_context: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._config = config
        self._trees = trees
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._eos_token_ids = eos_token_ids
        self._room = config.num_pages * config.page_size
        self._adapters = adapters or LoadedAdapters()
        self._tickets = 0

    def admit(self, request: GenerationRequest) -> RequestState:
        """The state of a request that may enter.

        Raises InvalidArgumentError, naming field and limit, for one that can never be served; NotFoundError or
        FailedPreconditionError for one whose adapter is not loaded.
        """
        validate_sampling(request.sampling, vocab_size=self._vocab_size)
        self._check_tokens(request)
        self._check_names(request)
        adapter = self._adapters.named(request.adapter_id)
        if adapter is not None:
            request = replace(request, adapter_id=adapter.id)
        limit = self._limit(request)
        self._check_memory(request, limit)
        params = request.sampling
        proposer, max_nodes, max_depth = self._speculation(request.speculation)
        if params.max_tokens == 0:
            proposer = ""
        seed = secrets.randbits(63) if params.seed is None else params.seed
        # A grammar lets the model's own ends come only where the output is complete; then they count.
        free = params.ignore_eos and params.grammar is None
        stop_ids = frozenset(params.stop_token_ids + (() if free else self._eos_token_ids))
        self._tickets += 1
        if adapter is not None:
            self._adapters.count(adapter)
        return RequestState(
            request=request,
            parameters=RequestParameters(
                arrival_number=self._tickets,
                sampling=replace(params, seed=seed),
                seed=seed,
                stop_token_ids=stop_ids,
                max_length=limit,
                tenant=request.tenant if self._config.fair else "",
                adapter_slot=-1 if adapter is None else adapter.slot,
            ),
            draft=DraftState(
                proposer=proposer,
                max_nodes=max_nodes,
                max_depth=max_depth,
                adaptive=self._config.adaptive and replace(request.speculation, trace=False) == SpeculationOptions(),
            ),
            tokens=[*request.prompt_token_ids, *request.output_token_ids],
        )

    def _check_tokens(self, request: GenerationRequest) -> None:
        if not request.prompt_token_ids:
            raise InvalidArgumentError(
                "prompt_token_ids is empty, must hold at least one token", field="prompt_token_ids"
            )
        check_tokens("prompt_token_ids", request.prompt_token_ids, self._vocab_size)
        check_tokens("output_token_ids", request.output_token_ids, self._vocab_size)

    def _check_names(self, request: GenerationRequest) -> None:
        size = len(request.tenant.encode(errors="replace"))
        if size > MAX_NAME_BYTES:
            raise InvalidArgumentError(f"tenant has {size} bytes, the limit is {MAX_NAME_BYTES}", field="tenant")
        check_range("choice_index", request.choice_index, 0, 2**32 - 1)
        if not LEAST_WEIGHT <= request.weight <= MOST_WEIGHT:
            raise InvalidArgumentError(
                f"weight is {request.weight:g}, must be from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}", field="weight"
            )

    def _limit(self, request: GenerationRequest) -> int:
        """Prompt and output tokens together at which the request ends.

        Without max_tokens that is the end of the context, or of the KV cache if that holds less; where it is 0 there is
        a token that is decided and dropped.
        """
        prompt = len(request.prompt_token_ids)
        context = self._max_context
        if prompt >= context:
            raise InvalidArgumentError(
                f"prompt_token_ids has {prompt} tokens, the context of {context} leaves room for {context - 1}",
                field="prompt_token_ids",
            )
        max_tokens = request.sampling.max_tokens
        limit = max(prompt + 1, min(context, self._room)) if max_tokens is None else prompt + max(1, max_tokens)
        if limit > context:
            raise InvalidArgumentError(
                f"max_tokens is {max_tokens}, but a prompt of {prompt} tokens in a context of {context} "
                f"leaves room for {context - prompt}",
                field="max_tokens",
            )
        if request.sampling.min_tokens > limit - prompt:
            raise InvalidArgumentError(
                f"min_tokens is {request.sampling.min_tokens}, but a prompt of {prompt} tokens in a context of "
                f"{context} leaves room for {context - prompt}",
                field="min_tokens",
            )
        if len(request.output_token_ids) > limit - prompt:
            raise InvalidArgumentError(
                f"output_token_ids has {len(request.output_token_ids)} tokens, the output ends at {limit - prompt}",
                field="output_token_ids",
            )
        return limit

    def _check_memory(self, request: GenerationRequest, limit: int) -> None:
        pages = -(-limit // self._config.page_size)
        if pages > self._config.num_pages:
            prompt = len(request.prompt_token_ids)
            raise InvalidArgumentError(
                f"a prompt of {prompt} tokens and an output of up to {limit - prompt} need {pages} KV pages of "
                f"{self._config.page_size} tokens, the server has {self._config.num_pages} "
                f"({self._room} tokens): shorten the prompt or lower max_tokens",
                field="max_tokens" if prompt < self._room else "prompt_token_ids",
            )

    def _speculation(self, params: SpeculationOptions) -> tuple[str, int, int]:
        """Proposer, rows and depth of the request's trees; no proposer where it decodes plainly."""
        if params.max_nodes is not None:
            check_range("speculation.max_nodes", params.max_nodes, 1, MAX_ROWS)
        if params.max_depth is not None:
            check_range("speculation.max_depth", params.max_depth, 0, MAX_ROWS - 1)
        if params.proposer and not self._trees.known(params.proposer):
            raise InvalidArgumentError(
                f"speculation.proposer is {params.proposer!r}, which is neither configured nor attached",
                field="speculation.proposer",
            )
        largest = self._config.max_nodes
        max_nodes = largest if params.max_nodes is None else min(params.max_nodes, largest)
        max_depth = largest - 1 if params.max_depth is None else min(params.max_depth, largest - 1)
        proposer = params.proposer or self._trees.default() or ""
        if params.enabled is False or max_nodes == 1 or max_depth == 0:
            proposer = ""
        return proposer, max_nodes, max_depth
