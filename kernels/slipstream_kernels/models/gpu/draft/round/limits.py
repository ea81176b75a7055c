"""What a draft on a GPU is prepared for, resolved once at start-up."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.token_tree import MAX_ROWS

PAGE_SIZE = 16
"""Positions of a KV page."""
SESSION_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Sessions of a round, to which it is padded."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """Raises ValueError with the field and its limit where a value is out of range.

    max_depth: levels of the largest tree. width: children of a node, and nodes computed at a level. max_tokens: rows of
    text whose keys and values are kept, of all sessions. max_context: the longest session. max_sessions: that are open
    at once. chunk: rows of a pass over text alone. sizes: sessions of the rounds that graphs are captured for.
    memory_utilization: share of the device's memory that everything on it together may take.
    """

    max_depth: int
    width: int
    max_tokens: int = 262_144
    max_context: int = 16_384
    max_sessions: int = 128
    chunk: int = 512
    sizes: tuple[int, ...] = SESSION_SIZES
    memory_utilization: float = 0.95

    def __post_init__(self) -> None:
        self._check("max_depth", 1, MAX_ROWS - 2)
        self._check("width", 1, 16)
        self._check("max_tokens", 1, 2**27)
        self._check("max_context", 2, 2**20)
        self._check("max_sessions", 1, 4096)
        self._check("chunk", 1, 4096)
        self._check("memory_utilization", 0.01, 1)

    @property
    def round_sizes(self) -> tuple[int, ...]:
        """Sessions of the rounds, ascending; none holds more than can be open."""
        wanted = sorted({min(size, self.max_sessions) for size in self.sizes})
        return tuple(wanted)

    @property
    def text_rows(self) -> int:
        """Most rows of text of a session in a round: a whole path that was accepted, and the token behind it."""
        return self.max_depth + 1

    def max_nodes(self, levels: int) -> int:
        """Nodes that a tree of so many levels is made of, whatever its budget."""
        return self.width + max(0, levels - 1) * self.width**2

    @property
    def num_pages(self) -> int:
        """Each session's last page may be almost empty."""
        return -(-self.max_tokens // PAGE_SIZE) + self.max_sessions

    @property
    def lines(self) -> GpuLimits:
        """Limits of the tables that hold a line a session."""
        return GpuLimits(
            max_running=self.max_sessions,
            page_size=PAGE_SIZE,
            num_pages=self.num_pages,
            max_context=self.max_context,
        )

    def _check(self, field: str, low: float, high: float) -> None:
        value = getattr(self, field)
        if not low <= value <= high:
            raise ValueError(f"{field} is {value}, must be from {low} to {high}")
