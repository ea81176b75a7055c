"""How tokens are chosen, in the shape that offline users know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

from launcher.offline.argument_checks import check_type, check_unoffered
from slipstream.completion import Options

OWNER: Final = "SamplingParams"
TYPES: Final[Mapping[str, type]] = {
    "n": int,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "min_tokens": int,
    "ignore_eos": bool,
}
OPTIONAL: Final[Mapping[str, type]] = {"seed": int, "max_tokens": int, "logprobs": int, "prompt_logprobs": int}
UNOFFERED: Final[Mapping[str, tuple[Any, ...]]] = {
    "bad_words": (None, []),
    "allowed_token_ids": (None, []),
    "include_stop_str_in_output": (False,),
    "detokenize": (True,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (None,),
    "logits_processors": (None, []),
    "structured_outputs": (None,),
    "guided_decoding": (None,),
    "extra_args": (None,),
}
"""Fields that vLLM's class has, with the values that ask for nothing beyond what is done here."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters. Ranges are those of slipstream/v1/sampling.proto; the server checks them.

    Those from `bad_words` on are accepted at the values that ask for nothing (`UNOFFERED`). TypeError for a value
    of a wrong type, ValueError for one that is not offered.
    """

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
    logit_bias: Mapping[int, float] | None = field(default_factory=dict)
    max_tokens: int | None = 16
    """None: as many as the context holds."""
    min_tokens: int = 0
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Number of most likely tokens to report beside the chosen one; None: no logprobs."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens; with it `max_tokens` may be 0."""
    bad_words: InitVar[Sequence[str] | None] = None
    allowed_token_ids: InitVar[Sequence[int] | None] = None
    include_stop_str_in_output: InitVar[bool] = False
    detokenize: InitVar[bool] = True
    skip_special_tokens: InitVar[bool] = True
    spaces_between_special_tokens: InitVar[bool] = True
    truncate_prompt_tokens: InitVar[None] = None
    logits_processors: InitVar[Sequence[Any] | None] = None
    structured_outputs: InitVar[None] = None
    guided_decoding: InitVar[None] = None
    extra_args: InitVar[None] = None

    def __post_init__(self, *unoffered: Any) -> None:
        """Check what a server cannot be asked."""
        check_unoffered(OWNER, dict(zip(UNOFFERED, unoffered, strict=True)), UNOFFERED)
        for name, kind in TYPES.items():
            check_type(OWNER, name, getattr(self, name), kind)
        for name, kind in OPTIONAL.items():
            check_type(OWNER, name, getattr(self, name), kind, optional=True)
        if self.n < 1:
            raise ValueError(f"{OWNER}: n must be at least 1, got {self.n}")
        if self.top_k < -1:
            raise ValueError(f"{OWNER}: top_k must be at least -1, got {self.top_k}")
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise TypeError(f"{OWNER}: logit_bias must be a mapping, got {type(self.logit_bias).__name__}")
        for token_id, bias in (self.logit_bias or {}).items():
            check_type(OWNER, "logit_bias: a token id", token_id, int)
            check_type(OWNER, f"logit_bias[{token_id}]", bias, float)
        self._check_list("stop", str, () if isinstance(self.stop, str) else self.stop)
        self._check_list("stop_token_ids", int, self.stop_token_ids)

    def _check_list(self, name: str, kind: type, given: Any) -> None:
        if isinstance(given, str | bytes) or not isinstance(given, Sequence | None):
            raise TypeError(f"{OWNER}: {name} must be a list of {kind.__name__}, got {type(given).__name__}")
        for index, each in enumerate(given or ()):
            check_type(OWNER, f"{name}[{index}]", each, kind)

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
            logit_bias=self.logit_bias or {},
            min_tokens=self.min_tokens,
            stop=self.stop or (),
            stop_token_ids=self.stop_token_ids or (),
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
