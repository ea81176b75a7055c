"""Which numbers of requests are alike: what is learned of one holds for the others."""

from __future__ import annotations


def load_size(requests: int) -> int:
    """Return the class of a load: 1, 2, 3-5, 6-10, 11-21, 22-42, 43-85 and so on, as 1, 2, 3, ...; 0 of none.

    Loads that are held tend to be powers of two, from which a request is missing whenever one ends: these lie in the
    middle of their class, so that such a load is not two.
    """
    return (requests + requests // 2).bit_length()
