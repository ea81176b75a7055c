"""How the draft link is configured, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

from verify_service.attachments import TRANSPORTS, Attachment

AUTO = "auto"
"""The default proposer that is the first configured one, else the first one attached."""


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """`deadline` is how long a step may wait for trees, in seconds; `outbox_limit` counts token ids an attachment.

    `configured` names proposers that requests may ask for before any is attached. `default` is a name, `AUTO`, or
    None for no speculation. `transports` are those offered, best first.
    """

    configured: tuple[str, ...] = ()
    default: str | None = AUTO
    deadline: float = 0.02
    num_slots: int = 128
    attach_token: str = ""
    outbox_limit: int = 1 << 21
    transports: tuple[str, ...] = TRANSPORTS


@dataclass(frozen=True, slots=True)
class LinkState:
    """Counters from the start, and the number of live attachments.

    `waits` counts steps that waited, `misses` trees that were not there at the deadline, `stale` records dropped for
    their stamp, `malformed` records that cost their sender the attachment, `gaps` slots that lost their feed.
    """

    attachments: int
    waits: int
    misses: int
    stale: int
    malformed: int
    gaps: int


@dataclass(frozen=True, slots=True)
class ProposerStatus:
    """A proposer's name, and the newest attachment that offers it."""

    name: str
    configured: bool
    attachment: Attachment | None
