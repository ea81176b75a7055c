"""How the draft link is configured. The flags are read with this, so nothing here imports what takes long."""

from __future__ import annotations

from dataclasses import dataclass

CUDA_IPC, SHM, GRPC = "cuda_ipc", "shm", "grpc"
TRANSPORTS = (CUDA_IPC, SHM, GRPC)
"""What is spoken here, in the order of preference unless the operator has another."""
AUTO = "auto"
"""The default proposer that is the first configured one, else the first one attached."""


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """`deadline` is how long a step may wait for trees, in seconds; `outbox_limit` counts token ids an attachment.

    With a `deadline_share` it is at most this share of a plain step's measured time; with a `deadline_reach` slow
    drafters are waited for up to that, where it holds up nobody else (`draft_deadline.py`). For its first `spin`
    seconds a wait looks for trees in shared memory without sleeping.

    `configured` names proposers that requests may ask for before any is attached. `default` is a name, `AUTO`, or
    None for no speculation. `transports` are those offered, best first. States at `feature_boundaries` are captured
    whether a drafter wants them or not. `device_queue`: drafters of other processes may draft behind passes.
    """

    configured: tuple[str, ...] = ()
    default: str | None = AUTO
    deadline: float = 0.02
    deadline_share: float | None = None
    deadline_reach: float | None = None
    num_slots: int = 128
    attach_token: str = ""
    outbox_limit: int = 1 << 21
    transports: tuple[str, ...] = TRANSPORTS
    feature_boundaries: tuple[int, ...] = ()
    spin: float = 30e-6
    device_queue: bool = True
