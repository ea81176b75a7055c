"""Answers to chats: what differs from those to plain completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.core.request import Delta
from gateway.generation.generation import Generation
from gateway.openai.answer_parts import StreamedCalls, deltas, message
from gateway.openai.output import OutputOptions, finite
from gateway.openai.types import TopLogprob
from gateway.output_parsers.parts import AnswerPart
from gateway.output_parsers.registry import AnswerForm
from gateway.tokens.tokenizer import Tokenizer
from slipstream.generation_types import PositionLogprobs, TokenLogprob
from slipstream.tracing.names import OPERATION_CHAT


class ChatShape:
    """Chat completions."""

    id_prefix = "chatcmpl-"
    operation = OPERATION_CHAT
    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"
    prompt_in_choice = False

    def __init__(self, reasoning_fields: Sequence[str]) -> None:
        """`reasoning_fields`: names under which reasoning is answered."""
        self._reasoning_fields = reasoning_fields
        self._calls: dict[int, StreamedCalls] = {}

    def opening(self, generation: Generation, options: OutputOptions) -> list[dict[str, Any]]:
        """See Shape: the role of every choice, and with the first the prompt's ids."""
        chunks: list[dict[str, Any]] = []
        for index in range(len(generation.choices)):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            chunks.append({"choices": [choice]})
        if options.return_token_ids:
            chunks[0]["prompt_token_ids"] = list(generation.requests[0].prompt_token_ids)
        return chunks

    def part(self, text: str) -> dict[str, Any]:
        """See Shape."""
        return {"delta": {"content": text}}

    def pieces(self, delta: Delta, form: AnswerForm | None) -> list[dict[str, Any]]:
        """See Shape. A chunk has content, reasoning or a call; the one with the end of all has none of these.

        Clients take a call for finished with the next one's index, or with a finish reason that comes behind it.
        """
        if form is None or delta.parts is None:
            return [self.part(delta.text)]
        calls = self._calls.setdefault(delta.index, StreamedCalls(form))
        last = delta.finish_reason is not None
        bodies = deltas(delta.parts, form, calls, self._reasoning_fields, last=last)
        return [{"delta": body} for body in (*bodies, *([{}] if last else []))]

    def whole(self, text: str, parts: Sequence[AnswerPart] | None, form: AnswerForm | None) -> dict[str, Any]:
        """See Shape."""
        if form is None or parts is None:
            return {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"message": message(parts, form, self._reasoning_fields)}

    def logprobs(self, positions: Sequence[PositionLogprobs], tokenizer: Tokenizer, offset: int) -> Any:
        """See Shape."""
        content = [
            {
                **_top_logprob(position.chosen, tokenizer),
                "top_logprobs": [_top_logprob(entry, tokenizer) for entry in position.top],
            }
            for position in positions
        ]
        return {"content": content, "refusal": None}


def _top_logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> TopLogprob:
    return {
        "token": tokenizer.token_text(entry.token_id),
        "logprob": finite(entry.logprob),
        "bytes": list(tokenizer.token_bytes(entry.token_id)),
    }
