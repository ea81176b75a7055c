"""Real services for tests; see `launcher.cluster`."""

from launcher.cluster import Cluster
from launcher.free_ports import free_ports
from launcher.readiness import StartupError

__all__ = ["Cluster", "StartupError", "free_ports"]
