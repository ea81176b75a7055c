"""How tokens are chosen, in the shape that offline users know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.completion import Options


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters. Ranges are those of slipstream/v1/sampling.proto; the server checks them."""

    n: int = 1
    """Choices of each prompt; all share the seed and differ in their choice index."""
    temperature: float = 1.0
    """0: the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    """Without one each choice is given its own."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int | None = 16
    """None: as many as the context holds."""
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Number of most likely tokens to report beside the chosen one; None: no logprobs."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens; with it `max_tokens` may be 0."""

    def __post_init__(self) -> None:
        """ValueError for a number of choices below 1."""
        if self.n < 1:
            raise ValueError(f"n must be at least 1, got {self.n}")

    def options(self) -> Options:
        """As the client wants them; what is None is left to the server."""
        options = Options(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            min_tokens=self.min_tokens,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
        )
        if self.seed is not None:
            options["seed"] = self.seed
        if self.max_tokens is not None:
            options["max_tokens"] = self.max_tokens
        if self.logprobs is not None:
            options["logprobs"] = self.logprobs
        if self.prompt_logprobs is not None:
            options["prompt_logprobs"] = self.prompt_logprobs
        return options
