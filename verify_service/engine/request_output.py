"""What a request is told: the end of its output, usage and timings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slipstream.generation_types import FinishReason, PositionLogprobs, SpeculationStep, Timings, Usage
from slipstream.rpc.errors import SlipstreamError
from verify_service.core.prompt_scores import PromptScores
from verify_service.core.request import GenerationRequest, StepOutput
from verify_service.core.request_state import RequestState

PLAIN_STEP = SpeculationStep(0, 0, "")


def cut_output(state: RequestState, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
    """How many of the decided tokens are output, and why the output ends there, if it does.

    The deciding token itself is output. A stop at the last token the limit allows counts as a stop.
    """
    parameters = state.parameters
    if parameters.sampling.max_tokens == 0:  # nothing but the prompt's logprobs is wanted
        return 0, FinishReason.LENGTH
    room = parameters.max_length - len(state.tokens)
    if len(tokens) < room and parameters.stop_token_ids.isdisjoint(tokens):
        return len(tokens), None
    for index, token in enumerate(tokens[:room]):
        if token in parameters.stop_token_ids:
            return index + 1, FinishReason.STOP
    return room, FinishReason.LENGTH


def step_output(
    state: RequestState,
    tokens: tuple[int, ...],
    logprobs: tuple[PositionLogprobs, ...],
    step: SpeculationStep,
    reason: FinishReason | None,
    now: float,
) -> StepOutput:
    """The output of a step that decided `tokens`.

    Seed and usage go with the first one too: a client that cuts the output itself sees no last one.
    """
    first = not state.seed_sent
    if reason is None and not first:
        return StepOutput(state.key, tokens, logprobs, step)
    seed = state.parameters.seed if first else None
    state.seed_sent = True
    if reason is None:
        return StepOutput(state.key, tokens, logprobs, step, usage=usage_of(state) if first else None, seed=seed)
    return StepOutput(
        state.key, tokens, logprobs, step, reason, usage=usage_of(state), timings=timings_of(state, now), seed=seed
    )


def score_outputs(state: RequestState, scores: PromptScores) -> Iterator[StepOutput]:
    """Outputs that tell logprobs of the prompt."""
    return (StepOutput(state.key, prompt_scores=piece) for piece in scores.pieces())


def end_output(
    state: RequestState, reason: FinishReason, now: float, error: SlipstreamError | None = None
) -> StepOutput:
    """The last output of a request that ends without a further token."""
    seed = None if state.seed_sent else state.parameters.seed
    return StepOutput(
        state.key,
        finish_reason=reason,
        usage=usage_of(state),
        timings=timings_of(state, now),
        error=error,
        seed=seed,
    )


def refusal(request: GenerationRequest, error: SlipstreamError) -> StepOutput:
    """The only output of a request that was not admitted."""
    return StepOutput(request.key, finish_reason=FinishReason.ERROR, error=error)


def usage_of(state: RequestState) -> Usage:
    return Usage(
        prompt_tokens=state.prompt_length,
        completion_tokens=len(state.tokens) - state.prompt_length,
        cached_tokens=state.stats.cached_tokens,
        verify_steps=state.stats.verify_steps,
        drafted_tokens=state.stats.drafted_tokens,
        accepted_tokens=state.stats.accepted_tokens,
    )


def timings_of(state: RequestState, now: float) -> Timings:
    arrival = state.request.arrival
    return Timings(
        queued=max(0.0, state.stats.scheduled_at - arrival),
        first_token=max(0.0, state.stats.first_token_at - arrival),
        total=max(0.0, now - arrival),
    )
