"""Texts of what a verify step verified, for requests that are traced."""

from __future__ import annotations

from gateway.tokens.detokenizer import Detokenizer
from gateway.tokens.tokenizer import Tokenizer
from slipstream.generation_types import SpeculationStep, StepTrace


class TraceTexts:
    """The detokenizer of one traced choice, which notes what each token completes. A Detokenizer."""

    __slots__ = ("_inner", "_texts", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, shown: tuple[str, ...] = ()) -> None:
        """`shown` as of Tokenizer.detokenizer."""
        self._tokenizer = tokenizer
        self._inner: Detokenizer = tokenizer.detokenizer(shown)
        self._texts: list[str] = []

    def step(self, token_id: int) -> str:
        """See Detokenizer."""
        text = self._inner.step(token_id)
        self._texts.append(text)
        return text

    def flush(self) -> str:
        """See Detokenizer. It counts as the last token's."""
        rest = self._inner.flush()
        if self._texts:
            self._texts[-1] += rest
        return rest

    def written(self, step: SpeculationStep | None, used: int) -> SpeculationStep | None:
        """The step of the tokens since the last call with their texts; ending tokens, of which none came, have none.

        used: how many of the step's tokens are output.
        """
        texts, self._texts = self._texts, []
        if step is None or step.trace is None:
            return step
        trace, text_of = step.trace, self._tokenizer.token_text
        nodes = tuple(["" if token is None else text_of(token) for token in trace.token_ids])
        texts += [""] * (used - len(texts))
        told = StepTrace(trace.position, trace.token_ids, trace.parents, trace.log_probs, trace.sources, trace.accepted,
                         trace.pass_rows, trace.pass_seconds, nodes, tuple(texts))  # fmt: skip
        return SpeculationStep(step.drafted, step.accepted, step.proposer, step.sources, told)
