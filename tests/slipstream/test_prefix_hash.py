"""Names of prefixes are those that verify.proto describes, however tokens come."""

from __future__ import annotations

import hashlib
from array import array

from hypothesis import given
from hypothesis import strategies as st

from slipstream.prefix_hash import PrefixHasher, hash_prompt, mark, marks_within, prefix_salt

NAMES = st.text(max_size=6)


def is_mark(pages: int) -> bool:
    return pages % (1 << max(0, pages.bit_length() - 4)) == 0


def test_marks_are_the_numbers_that_are_zero_below_their_four_highest_bits() -> None:
    marks = [pages for pages in range(1, 5000) if is_mark(pages)]
    assert marks[:20] == [*range(1, 17), 18, 20, 22, 24]
    assert [mark(index + 1) for index in range(len(marks))] == marks
    for pages in range(1, 5000):
        assert marks_within(pages) == sum(each <= pages for each in marks[: marks_within(pages) + 1])
    assert marks_within(0) == 0


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=120), size=st.integers(1, 4), cuts=st.sets(st.integers(0, 60))
)
def test_a_prefix_is_named_by_all_its_tokens(tokens: list[int], size: int, cuts: set[int]) -> None:
    described = [
        int.from_bytes(
            hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in tokens[: pages * size])).digest()[:8],
            "little",
        )
        for pages in range(1, len(tokens) // size + 1)
        if is_mark(pages)
    ]
    assert hash_prompt(tokens, size) == (size, described)
    assert hash_prompt(array("I", tokens), size) == (size, described)
    hasher, found, at = PrefixHasher(size), list[int](), 0
    for cut in sorted(cuts):
        if at < cut * size <= len(tokens):
            hasher.copy().extend([1] * size)
            found += hasher.extend(tokens[at : cut * size])
            at = cut * size
    assert found + hasher.extend(tokens[at:]) == described


@given(tenant=NAMES, adapter=NAMES)
def test_a_salt_is_that_of_both_names(tenant: str, adapter: str) -> None:
    names = b"".join(len(name.encode()).to_bytes(8, "little") + name.encode() for name in (tenant, adapter))
    assert prefix_salt(tenant, adapter) == int.from_bytes(hashlib.sha256(names).digest()[:8], "little")


def test_namespaces_have_salts_of_their_own() -> None:
    pairs = [("", ""), ("a", ""), ("", "a"), ("ab", ""), ("a", "b"), ("\xe4", "")]
    assert len({prefix_salt(*pair) for pair in pairs}) == len(pairs)
