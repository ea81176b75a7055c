"""Real services for tests; see `launcher.supervision.cluster`."""

from launcher.services.free_ports import free_ports
from launcher.services.readiness import StartupError
from launcher.supervision.cluster import Cluster

__all__ = ["Cluster", "StartupError", "free_ports"]
