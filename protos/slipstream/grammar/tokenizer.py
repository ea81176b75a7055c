"""What enforcing a grammar needs of a checkpoint's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLTokenizer

from slipstream.json_file import MOST_BYTES, read_bounded
from slipstream.rpc.errors import FailedPreconditionError


@dataclass(frozen=True, slots=True)
class GrammarTokenizer:
    """`tokens` names every id's bytes, for ids below `vocab_size`, which is that of the model's logits.

    `specials` maps the text of each special token to its id: a grammar that writes that text means the token.
    """

    tokens: LLTokenizer
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    specials: dict[str, int]


def load_tokenizer(folder: Path, *, vocab_size: int, eos_token_ids: Sequence[int]) -> GrammarTokenizer:
    """Read a checkpoint's tokenizer.json; takes seconds for large vocabularies, without the interpreter's lock.

    No grammar allows ids between the tokenizer's vocabulary and `vocab_size`. Raises FailedPreconditionError where
    there is no such file, or none that can be used.
    """
    path = folder / "tokenizer.json"
    text = read_bounded(path, MOST_BYTES).decode(errors="replace")
    try:
        added = json.loads(text).get("added_tokens") or ()
        return GrammarTokenizer(
            LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_token_ids)),
            vocab_size,
            tuple(eos_token_ids),
            {each["content"]: each["id"] for each in added if each.get("special")},
        )
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise FailedPreconditionError(f"{path}: no tokenizer for grammars can be made of it: {error}") from error
