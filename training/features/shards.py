"""Files of features: safetensors, written from front to back, of which every byte but the states is known before.

A shard holds whole sequences, one behind the other: `offsets` int64 [sequences + 1] into the rows, `token_ids` int32
[tokens], `states` bfloat16 [tokens, boundaries * hidden_size] and `produced` bool [tokens]. Its metadata has
`sequences`, JSON of id, part and category of each, and where others than the target wrote some, `recorded`, JSON of
their places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.features.texts import Texts


@dataclass(frozen=True, slots=True)
class Shard:
    """The sequences `first` to `end` - 1; a row of states has `width` numbers."""

    number: int
    first: int
    end: int
    tokens: int
    width: int

    @property
    def file(self) -> str:
        return f"features-{self.number:05d}.safetensors"

    @property
    def sequences(self) -> int:
        return self.end - self.first

    def head(self, texts: Texts) -> bytes:
        """All before the states."""
        offsets = texts.offsets[self.first : self.end + 1] - texts.offsets[self.first]
        tokens = texts.token_ids[texts.offsets[self.first] : texts.offsets[self.end]]
        return self._header(texts) + bytes(offsets.astype("<i8")) + bytes(tokens.astype("<i4"))

    def tail(self, texts: Texts) -> bytes:
        """All behind the states."""
        return bytes(texts.produced[texts.offsets[self.first] : texts.offsets[self.end]])

    def size(self, texts: Texts) -> int:
        """Bytes of the whole file."""
        return len(self._header(texts)) + 8 * (self.sequences + 1) + self.tokens * (4 + 2 * self.width + 1)

    def _header(self, texts: Texts) -> bytes:
        """Its length and the JSON that tells where each tensor lies, padded to a multiple of eight bytes."""
        names = json.dumps(texts.names[self.first : self.end])
        metadata = {"sequences": names}
        if recorded := np.flatnonzero(texts.recorded[self.first : self.end]).tolist():
            metadata["recorded"] = json.dumps(recorded)
        entries: dict[str, object] = {"__metadata__": metadata}
        begin = 0
        for name, dtype, shape, size in (
            ("offsets", "I64", [self.sequences + 1], 8),
            ("token_ids", "I32", [self.tokens], 4),
            ("states", "BF16", [self.tokens, self.width], 2),
            ("produced", "BOOL", [self.tokens], 1),
        ):
            end = begin + size * int(np.prod(shape))
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
            begin = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def shards_of(texts: Texts, width: int, shard_bytes: int) -> Iterator[Shard]:
    """Shards of about `shard_bytes` bytes of states, of one sequence at least."""
    lengths = texts.lengths
    first = tokens = number = 0
    for index, length in enumerate(lengths):
        if index > first and (tokens + length) * 2 * width > shard_bytes:
            yield Shard(number, first, index, tokens, width)
            first, tokens, number = index, 0, number + 1
        tokens += length
    if first < len(lengths):
        yield Shard(number, first, len(lengths), tokens, width)
