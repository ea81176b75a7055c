"""Near-duplicates by MinHash (Broder, 1997) and banded locality-sensitive hashing, kept on disk.

datasketch computes signatures and chooses the bands; the buckets are rows of a SQLite table, so that memory is bounded
and what has been seen survives together with what was written because of it.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_WORD: Final = re.compile(r"\w+")

Signature = npt.NDArray[np.uint32]
"""uint32 [permutations]."""


class Signer:
    """Computes signatures. One per process."""

    def __init__(self, permutations: int, shingle: int) -> None:
        from datasketch import MinHash

        self._shingle = shingle
        self._empty: Any = MinHash(num_perm=permutations, scheme="affine32")

    def sign(self, text: str) -> bytes:
        """The signature of the set of runs of words, without case and punctuation; little-endian."""
        words = _WORD.findall(text.casefold()) or [text]
        size = min(self._shingle, len(words))
        runs = {" ".join(words[start : start + size]).encode("utf-8") for start in range(len(words) - size + 1)}
        sketch = self._empty.copy()
        sketch.update_batch(sorted(runs))
        return bytes(sketch.hashvalues.astype("<u4").tobytes())


class NearDuplicates:
    """The signatures of what was kept, and the search for one that resembles another. Commits nothing itself."""

    def __init__(self, database: sqlite3.Connection, similarity: float, permutations: int, name: str = "") -> None:
        """`name`: an identifier that tells several of one database apart."""
        from datasketch import MinHashLSH

        self._database = database
        self._similarity = similarity
        self._bands: list[tuple[int, int]] = MinHashLSH(threshold=similarity, num_perm=permutations).hashranges
        self._kept, self._bucket = f"{name}kept", f"{name}bucket"
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {self._kept} (number INTEGER PRIMARY KEY, key TEXT, signature BLOB)"
        )
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {self._bucket} "
            "(band BLOB, number INTEGER, PRIMARY KEY (band, number)) WITHOUT ROWID"
        )

    def find(self, signature: bytes) -> str | None:
        """Key of the most similar text kept, the earliest of equals; None if none is similar enough."""
        bands = self._hashed(signature)
        marks = ",".join("?" * len(bands))
        rows = self._database.execute(
            f"SELECT key, signature FROM {self._kept} WHERE number IN "  # noqa: S608  # our names, and question marks
            f"(SELECT DISTINCT number FROM {self._bucket} WHERE band IN ({marks})) ORDER BY number",
            bands,
        )
        mine = _parsed(signature)
        best, found = self._similarity, None
        for key, other in rows:
            similarity = float(np.mean(_parsed(other) == mine))
            if similarity > best or (found is None and similarity >= best):
                best, found = similarity, key
        return found

    def add(self, key: str, signature: bytes) -> None:
        """Remember a text that was kept."""
        number = self._database.execute(
            f"INSERT INTO {self._kept} (key, signature) VALUES (?, ?)",  # noqa: S608  # a name of ours
            (key, signature),
        ).lastrowid
        self._database.executemany(
            f"INSERT OR IGNORE INTO {self._bucket} VALUES (?, ?)",  # noqa: S608  # a name of ours
            [(band, number) for band in self._hashed(signature)],
        )

    def _hashed(self, signature: bytes) -> list[bytes]:
        """A key of eight bytes for each band."""
        return [
            hashlib.blake2b(signature[4 * first : 4 * last], digest_size=8, salt=first.to_bytes(8, "little")).digest()
            for first, last in self._bands
        ]


def _parsed(signature: bytes) -> Signature:
    return np.frombuffer(signature, dtype="<u4")
