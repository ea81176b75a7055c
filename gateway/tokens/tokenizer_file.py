"""tokenizer.json as an untrusted file: what is refused, before anything is sized by what it says."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from slipstream.json_file import read_bounded, read_object
from slipstream.rpc.errors import FailedPreconditionError

_log = logging.getLogger(__name__)

_MOST_BYTES: Final = 1 << 28
_MOST_IDS: Final = 1 << 21
"""One more than the highest id of a token; models have at most 2^20."""
_MOST_ADDED_TOKENS: Final = 1 << 16


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a model's folder. FailedPreconditionError, which names the file, where there is none.

    Its ids are different ones, and few enough to make tables of.
    """
    path = folder / "tokenizer.json"
    text = read_bounded(path, _MOST_BYTES)
    try:
        tokenizer = Tokenizer.from_buffer(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise FailedPreconditionError(f"{path}: {_one_line(error)}") from error
    _check(path, tokenizer)
    _warn_beyond(folder, path, tokenizer)
    return tokenizer


def _check(path: Path, tokenizer: Tokenizer) -> None:
    vocabulary: Mapping[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    added = len(tokenizer.get_added_tokens_decoder())
    if not vocabulary:
        raise FailedPreconditionError(f"{path}: the vocabulary is empty")
    if added > _MOST_ADDED_TOKENS:
        raise FailedPreconditionError(f"{path}: added_tokens has {added} entries, the limit is {_MOST_ADDED_TOKENS}")
    token, highest = max(vocabulary.items(), key=lambda item: item[1])
    if highest >= _MOST_IDS:
        raise FailedPreconditionError(
            f"{path}: token {reprlib.repr(token)} has id {highest}, the limit is {_MOST_IDS - 1}"
        )
    by_id: dict[int, str] = {}
    for text, token_id in vocabulary.items():
        other = by_id.setdefault(token_id, text)
        if other != text:
            raise FailedPreconditionError(
                f"{path}: tokens {reprlib.repr(min(text, other))} and {reprlib.repr(max(text, other))} have the same "
                f"id, {token_id}"
            )


def _warn_beyond(folder: Path, path: Path, tokenizer: Tokenizer) -> None:
    """Warn of tokens that the model beside the file does not have: requests with them are refused one by one."""
    config = folder / "config.json"
    size = read_object(config).get("vocab_size") if config.is_file() else None
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if isinstance(size, int) and highest >= size:
        _log.warning("%s has ids up to %d, the model's vocabulary ends at %d", path, highest, size - 1)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:300])
