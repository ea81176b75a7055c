"""The language a prompt is written in, told by py3langid: a small model that comes with the package."""

from __future__ import annotations

import re
from typing import Any, Final

_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)
_FEWEST_LETTERS: Final = 24
"""Below, a detector guesses."""
_NO_LANGUAGE: Final = "zxx"
"""ISO 639-2 for what has no linguistic content, such as tables."""
_LONGEST: Final = 4000
"""Characters that are looked at."""


class LanguageDetector:
    """Names a language only where there is enough running text to tell."""

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._identifier: Any = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def detect(self, text: str) -> tuple[str, float] | None:
        """ISO 639-1 code and probability; None where the text without its code is too short."""
        prose = _CODE.sub(" ", text[: 2 * _LONGEST])[:_LONGEST]
        if sum(map(str.isalpha, prose)) < _FEWEST_LETTERS:
            return None
        code, probability = self._identifier.classify(prose)
        return None if code == _NO_LANGUAGE else (str(code), float(probability))
