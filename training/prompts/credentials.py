"""Keys and passwords, found by detect-secrets' detectors of known formats and of assignments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

_LEFT_OUT: Final = frozenset({"HexHighEntropyString", "IPPublicDetector"})
"""Hexadecimal strings of high entropy are mostly hashes; addresses are another detector's."""

_BEFORE: Final = re.compile(r"[\w.+/-]*\Z")
_AFTER: Final = re.compile(r"[\w.+/=-]*")
_BLOCK_END: Final = re.compile(r"-----END [^\n]*|\Z")
_FIRST_WORD: Final = re.compile(r"[^\s,;&\"'`$()\[\]{}<>]{8,}")
_ATTRIBUTE: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


class CredentialFinder:
    """Spans of secrets in a text."""

    def __init__(self) -> None:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins.keyword import KeywordDetector
        from detect_secrets.plugins.private_key import PrivateKeyDetector

        classes: dict[str, Any] = dict(sorted(get_mapping_from_secret_type_to_class().items()))
        self._detectors: list[Any] = [each() for each in classes.values() if each.__name__ not in _LEFT_OUT]
        self._blocks = next(each for each in self._detectors if isinstance(each, PrivateKeyDetector))
        self._named = next(each for each in self._detectors if isinstance(each, KeywordDetector))

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each; of a private key, the whole block."""
        start = 0
        for line in text.splitlines(keepends=True):
            for detector in self._detectors:
                for secret in _certain(detector, line):
                    yield from self._spans(text, start, line, secret, block=detector is self._blocks)
            for secret in _unquoted(self._named, line):
                yield from self._spans(text, start, line, secret, block=False)
            start += len(line)

    @staticmethod
    def _spans(text: str, start: int, line: str, secret: str, *, block: bool) -> Iterator[tuple[int, int]]:
        if block:
            end = _BLOCK_END.search(text, start)
            yield start + max(0, line.find("-----BEGIN")), len(text) if end is None else end.end()
            return
        position = line.find(secret) if secret else -1
        while position >= 0:
            # Some detectors report a part: the prefix of a GitHub token, a JSON web token without its signature.
            before, after = _BEFORE.search(line, 0, position), _AFTER.match(line, position + len(secret))
            assert before is not None
            assert after is not None
            first, last = before.start(), after.end()
            yield start + first, start + last
            position = line.find(secret, last)


def _certain(detector: Any, line: str) -> Iterator[str]:
    """What a detector finds; of quoted strings, those of high entropy."""
    limit = getattr(detector, "entropy_limit", None)
    for secret in detector.analyze_string(line):
        if limit is None or detector.calculate_shannon_entropy(secret) > limit:
            yield secret


def _unquoted(detector: Any, line: str) -> Iterator[str]:
    """What a name such as password or api_key is set to without quotes, as in settings and terminals.

    Code and prose have other words there: it counts where it holds letters and digits, and is no attribute.
    """
    from detect_secrets.plugins.keyword import CONFIG_DENYLIST_REGEX_TO_GROUP

    if not any(map(str.isdecimal, line)):
        return
    for value in detector.analyze_string(line, denylist_regex_to_group=CONFIG_DENYLIST_REGEX_TO_GROUP):
        found = _FIRST_WORD.match(value)
        word = found.group() if found else ""
        if any(map(str.isdecimal, word)) and any(map(str.isalpha, word)) and not _ATTRIBUTE.fullmatch(word):
            yield word
