"""Which tokenizers take time in proportion to a text, whatever is in it: known from the parts they are made of.

Byte-level BPE of words (Radford et al., GPT-2, 2019, section 2.2), cut out by one of the expressions that public models
have. Merging takes n log n for a word, and none of these expressions tries a place more than a few times over. Other
expressions may backtrack without end, other normalizers may make a text longer, and other models may look at each part
of a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_END: Final = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT_FORMS: Final = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)")
_WORDS: Final = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SIGNS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_NUMBERS: Final = (r"\p{N}", r"\p{N}{1,3}")
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_MAYBE_SHORT_FORM: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K_WORDS: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_MAYBE_SHORT_FORM}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_MAYBE_SHORT_FORM}|"
)
_CL100K: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
EXPRESSIONS: Final = frozenset(
    {
        # Llama 3, Qwen 2 and 3, the demo model
        *(short + _WORDS + number + _SIGNS + _END for short in _SHORT_FORMS for number in _NUMBERS),
        # OpenAI's cl100k_base, o200k_base and gpt2
        _CL100K,
        _O200K_WORDS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END,
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    }
)
"""Of pre-tokenizers that split."""

_MOST_PARTS: Final = 8
"""Of a pre-tokenizer, and special tokens that a post-processor adds."""


def is_bounded(pipeline: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json as `tokenizers` writes it is one of these."""
    model = pipeline["model"]
    plain = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    return (
        model["type"] == "BPE"
        and not any(model.get(name) for name in plain)
        and not model.get("byte_fallback")
        and _is_plain(pipeline.get("normalizer"))
        and _cuts_words(pipeline.get("pre_tokenizer"))
        and _adds_few(pipeline.get("post_processor"))
        # The text before and behind these is looked through once for each of them.
        and not any(
            token.get("lstrip") or token.get("rstrip") or token.get("single_word") for token in pipeline["added_tokens"]
        )
    )


def _is_plain(normalizer: Mapping[str, Any] | None) -> bool:
    """NFC makes at most three times as many characters."""
    return normalizer is None or normalizer["type"] == "NFC"


def _cuts_words(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return False
    if pre_tokenizer["type"] == "Sequence":
        *first, last = pre_tokenizer["pretokenizers"] or [{"type": ""}]
        return 0 < len(first) < _MOST_PARTS and _is_byte_level(last) and all(map(_splits, first))
    return _is_byte_level(pre_tokenizer) and bool(pre_tokenizer.get("use_regex", True))


def _is_byte_level(part: Mapping[str, Any]) -> bool:
    return bool(part["type"] == "ByteLevel")


def _splits(part: Mapping[str, Any]) -> bool:
    return bool(
        part["type"] == "Split"
        and part["pattern"].get("Regex") in EXPRESSIONS
        and part["behavior"] == "Isolated"
        and not part["invert"]
    )


def _adds_few(post_processor: Mapping[str, Any] | None) -> bool:
    if post_processor is None or post_processor["type"] == "ByteLevel":
        return True
    if post_processor["type"] == "Sequence":
        processors = post_processor["processors"]
        return len(processors) <= _MOST_PARTS and all(map(_adds_few, processors))
    return bool(
        post_processor["type"] == "TemplateProcessing"
        and len(post_processor["single"]) <= _MOST_PARTS
        and sum("Sequence" in piece for piece in post_processor["single"]) <= 1
        and all(len(token["ids"]) <= _MOST_PARTS for token in post_processor["special_tokens"].values())
    )
