"""What cleaning is asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

KINDS: Final = ("email", "phone", "card", "account", "national_id", "address", "ip", "secret", "name")
"""Kinds of personal data, in the order in which reports list them."""

MODEL_FREE_KINDS: Final = KINDS[:-1]
"""Names alone need a language model of spaCy's, which is downloaded apart."""


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """Everything that decides what becomes of a prompt. Equal settings and inputs give equal outputs, to the byte."""

    model: Path | None = None
    """Folder whose tokenizer.json counts tokens; None: lengths are not filtered."""
    field: str | None = None
    keep_answers: bool = False
    """Whether what assistants said is cleaned and kept, for `recorded`, and plain texts are taken as such."""
    min_tokens: int = 1
    max_tokens: int = 2048
    max_characters: int = 200_000
    languages: tuple[str, ...] = ()
    """ISO 639-1 codes that are kept; empty: all."""
    language_confidence: float = 0.9
    """How sure the detector must be of another language to remove a prompt."""
    kinds: tuple[str, ...] = MODEL_FREE_KINDS
    personal: str = "replace"
    """"replace" by placeholders, or "drop" the prompt."""
    phone_regions: tuple[str, ...] = ("US", "GB", "DE", "FR", "IN")
    names: str | None = None
    """An installed spaCy pipeline, or its folder, that finds names."""
    similarity: float = 0.8
    """Estimated Jaccard similarity from which two prompts count as one."""
    permutations: int = 128
    shingle: int = 3
    """Words a shingle."""
    heldout: float = 0.05
    """Part of all texts, by hash, that is kept from training."""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()} | {
            "languages": list(self.languages),
            "kinds": list(self.kinds),
            "phone_regions": list(self.phone_regions),
        }
