"""From step outputs to text: detokenised token by token and cut at the token that decides the end."""

from __future__ import annotations

from gateway.core.request import ChoiceRequest, Delta, StepOutput
from gateway.output_parsers.parts import CallBegin, joined
from gateway.output_parsers.registry import markers, new_parser
from gateway.tokens.detokenizer import Detokenizer
from gateway.tokens.stop_strings import StopStrings
from gateway.tokens.tokenizer import Tokenizer
from gateway.tokens.trace_texts import TraceTexts
from slipstream.generation_types import FinishReason, Usage


class ChoiceStream:
    """The output of one choice so far. The sequence of tokens alone decides text, finish reason and usage.

    A stop token's own text is not shown. Stop strings count from `min_tokens` on.
    """

    __slots__ = ("_accepted_tokens", "_cached_tokens", "_completion_tokens", "_detokenizer", "_drafted_tokens",
                 "_ending_ids", "_index", "_min_tokens", "_parser", "_prompt_tokens", "_stops", "_trace",
                 "_verify_steps", "calls", "finish_reason", "proposers", "reasoning_tokens")  # fmt: skip

    def __init__(self, index: int, request: ChoiceRequest, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        sampling = request.sampling
        self._index = index
        form = request.answer
        shown = () if form is None else markers(form.names)
        traced = request.speculation is not None and request.speculation.trace
        self._trace = TraceTexts(tokenizer, shown) if traced else None
        self._detokenizer: Detokenizer = self._trace or tokenizer.detokenizer(shown)
        self._parser = None if form is None else new_parser(form)
        self.calls = 0
        self.reasoning_tokens = 0  # those of its markers included
        self._stops = StopStrings(request.stop) if request.stop else None
        self._min_tokens = sampling.min_tokens or 0
        self._ending_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self._ending_ids |= eos_token_ids
        self.finish_reason: FinishReason | None = None
        self.proposers: set[str] = set()  # whose trees were verified
        self._prompt_tokens = len(request.prompt_token_ids)
        self._completion_tokens = self._cached_tokens = 0
        self._verify_steps = self._drafted_tokens = self._accepted_tokens = 0

    @property
    def finished(self) -> bool:
        """Whether nothing more comes."""
        return self.finish_reason is not None

    @property
    def usage(self) -> Usage:
        """Totals so far."""
        return Usage(
            self._prompt_tokens,
            self._completion_tokens,
            self._cached_tokens,
            self._verify_steps,
            self._drafted_tokens,
            self._accepted_tokens,
        )

    def feed(self, output: StepOutput) -> Delta:
        """Take in one step. Once finished, later steps must not be fed."""
        delta = Delta(self._index, "", output.token_ids, output.logprobs, output.prompt_logprobs, output.step)
        if output.timings is not None:
            delta.timings = output.timings
        if self._parser is not None:
            delta.parts = []
        used = self._decode(output.token_ids, delta)
        if used < len(output.token_ids):
            delta.token_ids = output.token_ids[:used]
            delta.logprobs = output.logprobs and output.logprobs[:used]
        if delta.finish_reason is None and output.finish_reason is not None:
            self._end(delta, output.finish_reason, self._completion_tokens + used)
        self.finish_reason = delta.finish_reason
        self._count(output, used)
        if self._trace is not None:
            delta.step = self._trace.written(output.step, used)
        if delta.parts:
            delta.parts = joined(delta.parts)
            self.calls += sum(isinstance(part, CallBegin) for part in delta.parts)
        return delta

    def _decode(self, token_ids: list[int], delta: Delta) -> int:
        """Append the text of `token_ids`; returns how many of them belong to the output."""
        stops, step, ending_ids = self._stops, self._detokenizer.step, self._ending_ids
        before = self._completion_tokens
        for index, token_id in enumerate(token_ids):
            if token_id in ending_ids:
                delta.stop_token_id = token_id
                self._end(delta, FinishReason.STOP, before + index + 1)
                return index + 1
            text = step(token_id)
            if stops is not None:
                text = stops.push(text, armed=before + index + 1 >= self._min_tokens)
            delta.text += text
            if self._parser is not None:
                self._split(delta, text)
            if stops is not None and stops.matched is not None:
                delta.stop_string, delta.finish_reason = stops.matched, FinishReason.STOP
                self._finish(delta)
                return index + 1
        return len(token_ids)

    def _split(self, delta: Delta, text: str) -> None:
        """Take in the text that a token completes."""
        if self._parser is not None and delta.parts is not None:
            thinking = self._parser.in_reasoning
            delta.parts += self._parser.push(text)
            self.reasoning_tokens += thinking or self._parser.in_reasoning

    def _end(self, delta: Delta, reason: FinishReason, count: int) -> None:
        """Let out what was held back; it may still complete a stop string."""
        rest = self._detokenizer.flush()
        if self._stops is not None:
            rest = self._stops.push(rest, armed=count >= self._min_tokens)
            if self._stops.matched is not None and delta.stop_token_id is None:
                delta.stop_string, reason = self._stops.matched, FinishReason.STOP
            rest += self._stops.flush()
        delta.text += rest
        delta.finish_reason = reason
        if self._parser is not None and delta.parts is not None:
            delta.parts += self._parser.push(rest)
        self._finish(delta)

    def _finish(self, delta: Delta) -> None:
        if self._parser is not None and delta.parts is not None:
            delta.parts += self._parser.finish()

    def _count(self, output: StepOutput, used: int) -> None:
        self._completion_tokens += used
        if output.cached_tokens is not None:
            self._cached_tokens = output.cached_tokens
        if output.step is not None:
            self._verify_steps += 1
            if output.step.drafted:
                self._drafted_tokens += output.step.drafted
                self.proposers.add(output.step.proposer)
            self._accepted_tokens += output.step.accepted
