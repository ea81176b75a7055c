"""Clusters that benchmarks start are forked: see `support.forked_services`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launcher.supervision import cluster
from support.forked_services import ForkingSpawner


@pytest.fixture(autouse=True, scope="package")
def _forked_services() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "Spawner", ForkingSpawner)
        yield
