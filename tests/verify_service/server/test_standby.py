"""Services that stand by, then serve a model as any other does."""

from __future__ import annotations

import pytest

from launcher.services.process import discard_log
from launcher.services.standby_spawner import StandbySpawner
from launcher.supervision.cluster import Cluster
from support.ask import ask, jobs, tokens_of
from support.cluster import Cluster as ForkedCluster


@pytest.mark.slow
def test_services_that_stood_by_answer_as_others_do(tiny_model):
    wanted = jobs(4, tokens=16)
    options = {"draft": ["ngram"], "verify_args": ["--num-pages", "64"]}
    with ForkedCluster(tiny_model, **options) as cluster:
        expected = tokens_of(ask(cluster, wanted))
    spawner, lines = StandbySpawner(), []
    standing = Cluster(tiny_model, spawner=spawner, sink=lambda *line: lines.append(line), **options)
    spawner.prepare(standing.layout.without_gateway, discard_log)
    with standing:
        assert tokens_of(ask(standing, wanted)) == expected
        for name in ("verify", "draft"):
            assert "--standby" in standing.processes[name].args, f"{name} did not stand by"
