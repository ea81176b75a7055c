"""Conversations and texts as token ids, equal to those that a gateway would send to the target.

A conversation's text is encoded in stretches between special tokens that are never part of anything else. The tokens
before such a token and behind it do not depend on one another, so nothing is encoded twice however many turns there
are; elsewhere whole prompts are encoded, and compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tokenizers import Tokenizer

from slipstream.chat_template import ChatTemplate
from slipstream.rpc.errors import InvalidArgumentError
from training.answers.sequences import TokenSequence, Turn, extend
from training.prompts.records import ASSISTANT, TEXT, Prompt
from training.prompts.records import Turn as Said
from training.recorded.rendering import Rendering

SPECIAL: Final = "special tokens in the text"
NOT_UNICODE: Final = "not Unicode"
REFUSED: Final = "the chat template refuses it"
ELSEWHERE: Final = "the chat template does not write an answer behind its prompt"
ENDLESS: Final = "no end of turn behind an answer"
JOINED: Final = "the tokens of a prompt run into the answer"


class RefusedError(ValueError):
    """A recording that cannot be written as it would be served; the message is one of few."""


@dataclass(slots=True)
class Written:
    """The sequences of a recording, or the `reason` why there are none; `ended` why there are not all."""

    sequences: list[TokenSequence] = field(default_factory=list)
    reason: str = ""
    ended: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Places of stretches among those to encode.

    before: of the prompt, up to its last boundary, from the end of the answer before if it `continues` that, else from
    its beginning. tail: the rest of the prompt. through: the same with the answer, its end of turn included.
    """

    continues: bool
    before: int
    tail: int
    through: int


class ChatTokenizer:
    """Writes recordings as `rendering` says. One per process."""

    def __init__(self, rendering: Rendering, max_tokens: int) -> None:
        """ValueError where the tokenizer has no special token that ends a turn. `max_tokens`: of a sequence."""
        self._tokenizer = Tokenizer.from_file(str(rendering.folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._template = ChatTemplate.from_folder(rendering.folder)
        self._max_tokens = max_tokens
        added = self._tokenizer.get_added_tokens_decoder()
        ends = {index: added[index] for index in rendering.eos_token_ids if index in added}
        if not ends:
            raise ValueError(f"{rendering.folder}: no token of eos_token_id is a special token of tokenizer.json")
        self._ends = frozenset(ends)
        self._end = _any_of([token.content for token in ends.values()])
        self._special = _any_of([token.content for token in added.values() if token.special])
        self._boundaries = tuple(token.content for token in added.values() if _stands_alone(token))
        self._boundary = _any_of(self._boundaries)
        self._prefix = self._before_texts()

    def write(self, recordings: Sequence[Prompt]) -> list[Written]:
        """The sequences of each, encoded together."""
        stretches: list[str] = [""]
        written: list[Written] = []
        plans: list[list[_Answer] | int] = []
        for recording in recordings:
            try:
                plans.append(self._planned(recording.turns, stretches))
                written.append(Written())
            except RefusedError as error:
                plans.append([])
                written.append(Written(reason=str(error)))
        encoded = [each.ids for each in self._tokenizer.encode_batch_fast(stretches, add_special_tokens=False)]
        for each, plan in zip(written, plans, strict=True):
            if isinstance(plan, int):
                each.sequences = self._text(encoded[plan])
            else:
                self._assemble(each, plan, encoded)
        return written

    def _planned(self, turns: Sequence[Said], stretches: list[str]) -> list[_Answer] | int:
        """What to encode, which is added to `stretches`; of a text its place there."""
        for turn in turns:
            if self._special.search(turn.content):
                raise RefusedError(SPECIAL)
            if not turn.content.isascii() and _has_surrogates(turn.content):
                raise RefusedError(NOT_UNICODE)
        if turns[0].role == TEXT:
            return _place(turns[0].content, stretches)
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            return self._answers(messages, stretches)
        except InvalidArgumentError as error:
            raise RefusedError(REFUSED) from error

    def _answers(self, messages: list[dict[str, str]], stretches: list[str]) -> list[_Answer]:
        answers: list[_Answer] = []
        known = ""
        asked = False
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT or not asked:
                asked |= message["role"] == "user"
                continue
            prompt = self._template.render(messages[:number])
            whole = self._template.render(messages[: number + 1], add_generation_prompt=False)
            if not whole.startswith(prompt):
                raise RefusedError(ELSEWHERE)
            end = self._end.search(whole, len(prompt))
            if end is None:
                raise RefusedError(ENDLESS)
            continues = bool(known) and prompt.startswith(known)
            start = len(known) if continues else 0
            cut = self._last_boundary(prompt, start)
            pieces = prompt[start:cut], prompt[cut:], whole[cut : end.end()]
            answers.append(_Answer(continues, *(_place(piece, stretches) for piece in pieces)))
            known = whole[: end.end()] if end[0] in self._boundaries else ""
        return answers

    def _last_boundary(self, prompt: str, start: int) -> int:
        """Where the tokens of what follows no longer depend on what is before; `start` if there is no such place."""
        if prompt.endswith(self._boundaries):
            return len(prompt)
        last = start
        for match in self._boundary.finditer(prompt, start):
            last = match.end()
        return last

    def _assemble(self, written: Written, plan: list[_Answer], encoded: list[list[int]]) -> None:
        sequences: list[TokenSequence] = []
        for answer in plan:
            tail, through = encoded[answer.tail], encoded[answer.through]
            output = through[len(tail) :]
            if through[: len(tail)] != tail or not output or output[-1] not in self._ends:
                written.ended = JOINED
                break
            before = sequences[-1].token_ids if answer.continues else []
            prompt = [*before, *encoded[answer.before], *tail]
            extend(sequences, prompt, output, Turn(len(prompt), len(output), "stop", 0), ())
        written.sequences = [each for sequence in sequences if (each := self._cut(sequence)).produced]
        if written.ended and not sequences:
            written.reason, written.ended = written.ended, ""

    def _cut(self, sequence: TokenSequence) -> TokenSequence:
        most = self._max_tokens
        if len(sequence.token_ids) <= most:
            return sequence
        spans = [(start, min(end, most)) for start, end in sequence.produced if start < most]
        return TokenSequence(sequence.token_ids[:most], spans)

    def _text(self, ids: list[int]) -> list[TokenSequence]:
        """All but what stands before every text is to be learned from, and its first token if nothing does."""
        size, first = self._max_tokens - len(self._prefix), max(1, len(self._prefix))
        parts = ([*self._prefix, *ids[start : start + size]] for start in range(0, len(ids), size))
        return [TokenSequence(part, [(first, len(part))]) for part in parts if len(part) > first]

    def _before_texts(self) -> list[int]:
        """What the tokenizer puts before a plain prompt."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        places = range(len(full) - len(bare) + 1)
        return list(full[: next((at for at in places if full[at : at + len(bare)] == bare), 0)])


def _stands_alone(token: Any) -> bool:
    """Whether an added token is cut out of a text before anything else is done, together with nothing around it."""
    return bool(token.special and not (token.lstrip or token.rstrip or token.single_word or token.normalized))


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    """Matches the longest of them; nothing where there is none."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)")


def _place(text: str, stretches: list[str]) -> int:
    """Where it stands among those to encode; the first is empty."""
    if not text:
        return 0
    stretches.append(text)
    return len(stretches) - 1


def _has_surrogates(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
