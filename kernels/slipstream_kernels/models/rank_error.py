"""What is raised where the ranks that share a model are no longer complete."""

from __future__ import annotations


class RankError(RuntimeError):
    """Another rank has ended or no longer answers; nothing more can be computed."""
