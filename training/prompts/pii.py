"""Personal data, found by Microsoft Presidio's recognisers that need no language model, and by pyap for addresses.

Presidio's own engine wants a spaCy pipeline, which is a download; its recognisers of patterns and checksums work
without one and are called directly. Only those are used that validate what they find, or whose pattern is unmistakable.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from training.prompts.addresses import AddressFinder
from training.prompts.credentials import CredentialFinder
from training.prompts.settings import PromptSettings

Span = tuple[int, int]
Finder = Callable[[str], Iterable[Span]]

_MIN_SCORE: Final = 0.4
"""Presidio's patterns below are guesses that count only beside context words."""
_STRICT_GROUPING: Final = 2
"""phonenumbers' leniency: a valid number, its digits grouped as the region writes them."""
_FEWEST_DIGITS: Final = 7
_FEWEST_BARE_DIGITS: Final = 10
"""Of a phone number; fewer without any separator are a number like any other."""
_FRACTION: Final = re.compile(r"[+-]?\d+[.,]\d+")


class Finding(NamedTuple):
    """A piece of personal data at [start, end) of a text."""

    start: int
    end: int
    kind: str


class PersonalDataFinder:
    """Finds the kinds that the settings name."""

    def __init__(self, settings: PromptSettings) -> None:
        makers: dict[str, Callable[[], Finder]] = {
            "email": _emails,
            "phone": lambda: _phones(settings.phone_regions),
            "card": _cards,
            "account": lambda: _presidio(["IbanRecognizer", "CryptoRecognizer"]),
            "national_id": lambda: _presidio(["UsSsnRecognizer"]),
            "address": lambda: AddressFinder().find,
            "ip": _ips,
            "secret": lambda: CredentialFinder().find,
            "name": lambda: _names(settings.names or ""),
        }
        self._finders = [(kind, makers[kind]()) for kind in settings.kinds]

    def find(self, text: str) -> list[Finding]:
        """What was found, in order and apart: where findings overlap the longest stays, then the kind named first."""
        found = [Finding(*span, kind) for kind, finder in self._finders for span in finder(text)]
        taken: list[Finding] = []
        for finding in sorted(found, key=lambda each: each.start - each.end):
            if all(finding.end <= other.start or other.end <= finding.start for other in taken):
                taken.append(finding)
        return sorted(taken)


def _spans(recognisers: Sequence[Any], text: str) -> Iterator[Span]:
    for recogniser in recognisers:
        for result in recogniser.analyze(text, recogniser.supported_entities, None) or ():
            if result.score >= _MIN_SCORE:
                yield result.start, result.end


def _presidio(names: Sequence[str]) -> Finder:
    from presidio_analyzer import predefined_recognizers

    recognisers = [getattr(predefined_recognizers, name)() for name in names]
    return lambda text: _spans(recognisers, text)


def _emails() -> Finder:
    import tldextract
    from presidio_analyzer.predefined_recognizers import EmailRecognizer

    extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())  # the list that comes with it, no network

    class OfflineEmailRecognizer(EmailRecognizer):
        def validate_result(self, pattern_text: str) -> bool:
            return bool(extract(pattern_text).suffix)

    recognisers = [OfflineEmailRecognizer()]
    return lambda text: _spans(recognisers, text) if "@" in text else ()


def _phones(regions: Sequence[str]) -> Finder:
    from presidio_analyzer.predefined_recognizers import PhoneRecognizer

    recognisers = [PhoneRecognizer(supported_regions=tuple(regions), leniency=_STRICT_GROUPING)]

    def find(text: str) -> Iterator[Span]:
        for start, end in _spans(recognisers, text):
            if _is_dialled(text[start:end]) and not _is_part_of_a_number(text, start, end):
                yield start, end

    return find


def _is_dialled(written: str) -> bool:
    """Whether what the library takes for a phone number is none of the many other things that digits write."""
    digits = sum(map(str.isdecimal, written))
    bare = digits == len(written)
    return (
        digits >= _FEWEST_DIGITS
        and not (bare and digits < _FEWEST_BARE_DIGITS)
        and not (_is_ip(written) or _FRACTION.fullmatch(written))
    )


def _cards() -> Finder:
    search = _presidio(["CreditCardRecognizer"])
    return lambda text: (span for span in search(text) if not _is_part_of_a_number(text, *span))


def _is_part_of_a_number(text: str, start: int, end: int) -> bool:
    """Whether the digits at [start, end) go on before or after a point, as those of 3.14 and 1.3.6.1.4.1 do."""
    return text[max(0, start - 1) : start] == "." or re.match(r"\.\d", text[end : end + 2]) is not None


def _ips() -> Finder:
    search = _presidio(["IpRecognizer"])

    def find(text: str) -> Iterator[Span]:
        for start, end in search(text):
            written = text[start:end]
            plausible = ":" not in written or written.count(":") > 2  # a::b is C++
            if plausible and not _is_part_of_a_number(text, start, end) and not _is_nobodys(written):
                yield start, end

    return find


def _is_ip(written: str) -> bool:
    try:
        ipaddress.ip_interface(written)
    except ValueError:
        return False
    return True


def _is_nobodys(written: str) -> bool:
    address = ipaddress.ip_interface(written).ip
    return address.is_loopback or address.is_unspecified or written.startswith("255.")


def _names(pipeline: str) -> Finder:
    nlp = load_pipeline(pipeline)

    def find(text: str) -> Iterator[Span]:
        for entity in nlp(text).ents:
            if entity.label_ in ("PERSON", "PER"):
                yield entity.start_char, entity.end_char

    return find


def load_pipeline(name: str) -> Any:
    """The spaCy pipeline that finds names; ValueError if it is not there."""
    import spacy

    try:
        return spacy.load(name)
    except OSError as error:
        raise ValueError(
            f"spaCy has no pipeline {name!r} here: install one (python -m spacy download en_core_web_sm) "
            "or give the folder of one"
        ) from error
