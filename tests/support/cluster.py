"""Real services for tests; see `launcher.supervision.cluster`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.services.free_ports import free_ports
from launcher.services.readiness import StartupError
from launcher.supervision import cluster
from support.forked_services import ForkingSpawner

__all__ = ["Cluster", "StartupError", "free_ports"]


class Cluster(cluster.Cluster):
    """One whose services are forks of a process that has imported what they need."""

    def __init__(self, model: Path, **options: Any) -> None:
        super().__init__(model, spawner=ForkingSpawner(), **options)
