"""What a layer's attention computes beside softmax(q K^T / sqrt(head_dim)) V over all positions."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_DIMS = (64, 128, 256)
"""Elements of a head that a GPU's kernels are made for."""


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """A row at position p sees the positions from p - window + 1 to p, or all up to p where `window` is 0.

    Where there is a `chunk` in the place of a window, it sees those from p // chunk * chunk to p.
    scale: of products of query and key; 0: 1 / sqrt(head_dim). cap: scores s become cap * tanh(s / cap) where it is not
    0, before any is masked (arXiv 2408.00118, section 2). sinks: each head has one more score, given apart, which takes
    its share of the softmax and has no value (arXiv 2309.17453, section 3.2).
    """

    window: int = 0
    scale: float = 0.0
    cap: float = 0.0
    sinks: bool = False
    chunk: int = 0

    @property
    def reach(self) -> int:
        """As kernels take it: the window, or less a chunk; 0: a row sees all positions up to its own."""
        return self.window or -self.chunk

    def first_seen(self, position: int) -> int:
        """First position that a row at `position` sees."""
        if self.chunk:
            return position // self.chunk * self.chunk
        return max(position + 1 - self.window, 0) if self.window else 0

    def scale_of(self, head_dim: int) -> float:
        """The factor of products of heads of so many elements."""
        return float(self.scale or head_dim**-0.5)


FULL = AttentionForm()
