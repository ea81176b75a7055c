"""What `slipstream cluster status` tells, as the controller gathers it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrafterStatus:
    """A proposer of a draft service that is attached to a replica's verify service."""

    proposer: str
    process_id: int
    transport: str
    requests: int
    drafted_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """What a replica's verify service does, and has done. `hit_rate`: of prompt tokens; None before any."""

    running: int
    queued: int
    oldest_wait_seconds: float
    pages_total: int
    pages_idle: int
    tokens: int
    hit_rate: float | None
    drafters: tuple[DrafterStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica. `seconds`: for which it has been in its state. `progress`: the newest line of its log."""

    number: int
    generation: int
    state: str
    seconds: float
    leaving: bool
    node: str = ""
    address: str = ""
    metrics: str = ""
    process_id: int = 0
    gpus: tuple[str, ...] = ()
    model: str = ""
    build: str = ""
    progress: str = ""
    load: LoadStatus | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node of Ray. `off`: it gets no replicas."""

    node: str
    host: str
    alive: bool
    cpus: float
    gpus: float
    off: bool = False


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All of it. `failures`: starts in a row that failed, the last one for `reason`."""

    name: str
    directory: str
    directory_error: str
    generation: int
    wanted: int
    least: int
    most: int
    settled: bool
    closing: bool
    failures: int
    reason: str
    notes: tuple[str, ...]
    nodes: tuple[NodeStatus, ...]
    replicas: tuple[ReplicaStatus, ...]

    @property
    def ready(self) -> int:
        """Replicas that serve and are to stay."""
        return sum(each.state == "ready" and not each.leaving for each in self.replicas)
