"""What a round asks of a draft's network: rows of text, rows of a tree's level, and their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from slipstream_kernels.models.gpu.forward.kv_store import KVStore


@dataclass(frozen=True, slots=True)
class DraftShape:
    """What a round has to know of a draft.

    entries: tokens that it scores. features: width of the target's states that rows of text read, 0 for none. shift: a
    row at position p scores the token at p + shift; 1 for a language model, 2 for a head whose rows hold a state and
    the token behind it.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    entries: int
    features: int
    shift: int

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.heads // self.kv_heads

    @property
    def slot_bytes(self) -> int:
        """Bytes of keys and values of one slot."""
        return 4 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class DraftSizes:
    """The largest passes: rows of text, sessions of a round, and nodes of each that are computed at a level."""

    text_rows: int
    sessions: int
    width: int

    @property
    def node_rows(self) -> int:
        return self.sessions * self.width


class Attend(Protocol):
    """Attention after a layer's keys and values are written."""

    def __call__(self, layer: int, q: torch.Tensor, out: torch.Tensor, wanted: torch.Tensor | None = None) -> None:
        """q and out: bfloat16 [n, heads, head_dim]. wanted: int32 [m], the rows that count, -1 for none; else all."""
        ...


@dataclass(frozen=True, slots=True)
class PassRows:
    """Rows of one pass, on the device.

    token_ids, positions, write_slots: int32 [n]; the target's ids, absolute positions, slots that keys and values go to
    (-1 for padding, whose outputs are never used). Token ids of nodes come from the kernel in front of the pass: read
    them after `wait_for_previous`. rotary: float32 [positions, head_dim] of `Rope.table`.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    write_slots: torch.Tensor
    kv: KVStore
    rotary: torch.Tensor
    attend: Attend


class DraftForward(Protocol):
    """A draft's network. All but `allocate` queues ops on the current stream, allocates nothing and never waits."""

    @property
    def shape(self) -> DraftShape: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def vocabulary(self) -> torch.Tensor | None:
        """int32 [entries], the target's id of each entry; None where both are the same."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        ...

    @property
    def pass_bytes(self) -> int:
        """Bytes of weights that a pass over nodes, scores included, reads at least once."""
        ...

    def activation_bytes(self, sizes: DraftSizes) -> int:
        """What `allocate` takes."""
        ...

    def allocate(self, sizes: DraftSizes) -> None:
        """Make room for passes of up to these sizes; once, before any is queued."""
        ...

    def text(self, rows: PassRows, features: torch.Tensor | None, last_rows: torch.Tensor) -> None:
        """Write keys and values of rows of text, and keep what the last row of each session leaves for its tree.

        features: bfloat16 [n, shape.features], the target's states of the rows; None where shape.features is 0.
        last_rows: int32 [sessions], -1 for padding, [0] where no tree follows. From the plan.
        """
        ...

    def nodes(self, depth: int, rows: PassRows, parent_rows: torch.Tensor) -> None:
        """Compute rows of nodes `depth` levels below the roots, 1 or more, and keep what they leave for their children.

        parent_rows: int32 [n], rows of the pass in front, of the roots where depth is 1. Not from the plan.
        """
        ...

    def score(self, depth: int, logits: torch.Tensor) -> None:
        """Logits of what follows the roots (depth 0) or the nodes computed last: float32 [rows, entries]."""
        ...
