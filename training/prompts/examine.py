"""What becomes of one prompt, as far as it can be told without looking at others. Runs in worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from training.common.workers import follow_parent
from training.prompts.duplicates import Signer
from training.prompts.language import LanguageDetector
from training.prompts.pii import PersonalDataFinder
from training.prompts.records import USER, Prompt, Turn, said
from training.prompts.redact import samples, scrub
from training.prompts.settings import PromptSettings

TOO_SHORT: Final = "too short"
TOO_LONG: Final = "too long"
OTHER_LANGUAGE: Final = "language"
PERSONAL: Final = "personal data"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` why the prompt is dropped, or empty. `found` holds kind and masked sample of all personal data in it."""

    turns: tuple[Turn, ...]
    reason: str = ""
    detail: str = ""
    tokens: int | None = None
    signature: bytes = b""
    opening: bytes = b""
    """Signature of what users say first, where they say more."""
    found: tuple[tuple[str, str], ...] = ()


class Examiner:
    """Applies the settings to prompts."""

    def __init__(self, settings: PromptSettings) -> None:
        self._settings = settings
        self._finder = PersonalDataFinder(settings)
        self._signer = Signer(settings.permutations, settings.shingle)
        self._detector = LanguageDetector() if settings.languages else None
        self._count = _token_counter(settings)

    def examine(self, prompt: Prompt) -> Verdict:
        """Length, language, personal data, in this order. Tokens are those of the contents, without the template."""
        turns = prompt.turns
        tokens = self._count(turns)
        if (reason := self._length_reason(turns, tokens)) or (reason := self._language_reason(turns)):
            return Verdict(turns, *reason, tokens=tokens)
        found = [(turn, self._finder.find(turn.content)) for turn in turns]
        shown = tuple(sample for turn, findings in found for sample in samples(turn.content, findings))
        if shown and self._settings.personal == "drop":
            return Verdict(turns, PERSONAL, ", ".join(sorted({kind for kind, _ in shown})), tokens, found=shown)
        if shown:
            turns = tuple(scrub(turn, findings) for turn, findings in found)
            tokens = self._count(turns)
        signature, opening = self._signed(turns)
        return Verdict(turns, tokens=tokens, signature=signature, opening=opening, found=shown)

    def signatures(self, prompt: Prompt) -> tuple[bytes, ...]:
        """Of a prompt of any length and language: of all of it, and of what users say first, where they say more."""
        turns = tuple(scrub(turn, self._finder.find(turn.content)) for turn in prompt.turns)
        return tuple(filter(None, self._signed(turns)))

    def _signed(self, turns: Sequence[Turn]) -> tuple[bytes, bytes]:
        users = [turn for turn in turns if turn.role == USER]
        return self._signer.sign(said(turns)), self._signer.sign(said(users[:1])) if len(users) > 1 else b""

    def _length_reason(self, turns: Sequence[Turn], tokens: int | None) -> tuple[str, str] | None:
        characters = sum(len(turn.content) for turn in turns)
        if characters > self._settings.max_characters:
            return TOO_LONG, f"{characters} characters"
        if tokens is not None and tokens > self._settings.max_tokens:
            return TOO_LONG, f"{tokens} tokens"
        if tokens is not None and tokens < self._settings.min_tokens:
            return TOO_SHORT, f"{tokens} tokens"
        return None

    def _language_reason(self, turns: Sequence[Turn]) -> tuple[str, str] | None:
        if self._detector is None:
            return None
        detected = self._detector.detect(said(turns))
        if detected is None or detected[0] in self._settings.languages:
            return None
        code, probability = detected
        return (OTHER_LANGUAGE, code) if probability >= self._settings.language_confidence else None


class _TokenCounter:
    def __init__(self, path: str, longest: int) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(path)
        self._longest = longest

    def __call__(self, turns: Sequence[Turn]) -> int | None:
        if sum(len(turn.content) for turn in turns) > self._longest:
            return None
        encoded = self._tokenizer.encode_batch_fast([turn.content for turn in turns], add_special_tokens=False)
        return sum(len(each.ids) for each in encoded)


class _NoCounter:
    def __call__(self, turns: Sequence[Turn]) -> int | None:
        return None


def _token_counter(settings: PromptSettings) -> _TokenCounter | _NoCounter:
    if settings.model is None:
        return _NoCounter()
    return _TokenCounter(str(settings.model / "tokenizer.json"), settings.max_characters)


@cache
def examiner(settings: PromptSettings) -> Examiner:
    """The process's own, made once."""
    return Examiner(settings)


def begin_worker(settings: PromptSettings) -> None:
    """Prepare a worker process, which ends when the process that started it does, however that ends."""
    follow_parent()
    examiner(settings)


def examine_all(settings: PromptSettings, prompts: Sequence[Prompt]) -> list[Verdict]:
    """One task of the pool."""
    return [examiner(settings).examine(prompt) for prompt in prompts]
