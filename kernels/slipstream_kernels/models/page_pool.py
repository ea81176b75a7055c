"""Pages of a KV cache, wherever its keys and values lie: who holds which, and which are free."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class OutOfPagesError(RuntimeError):
    """The pool has fewer free pages than asked for."""


class PagePool:
    """Which pages are free and how many holders each other page has.

    The page released last is the first to be given away again; a new pool starts at page 0. `on_free` is told of each
    page that becomes free.
    """

    __slots__ = ("_free", "_on_free", "_references")

    def __init__(self, num_pages: int, on_free: Callable[[int], object] = lambda page: None) -> None:
        self._on_free = on_free
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages

    @property
    def free_count(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def references(self, page: int) -> int:
        """Number of holders of `page`."""
        return self._references[page]

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages with one holder each, all or none. Raises OutOfPagesError."""
        if count < 0:
            raise ValueError(f"count is {count}")
        if count > len(self._free):
            raise OutOfPagesError(f"{count} pages wanted, {len(self._free)} free of {len(self._references)}")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def retain(self, page: int) -> None:
        """Add a holder to a page in use."""
        self._check_held(page)
        self._references[page] += 1

    def release(self, page: int) -> bool:
        """Remove a holder; True if that was the last one and the page is free now."""
        self._check_held(page)
        self._references[page] -= 1
        if self._references[page]:
            return False
        self._free.append(page)
        self._on_free(page)
        return True

    def release_all(self, pages: Iterable[int]) -> None:
        """Remove one holder of each page."""
        for page in pages:
            self.release(page)

    def _check_held(self, page: int) -> None:
        if not 0 <= page < len(self._references) or not self._references[page]:
            raise ValueError(f"page {page} is not in use")
