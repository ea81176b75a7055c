from __future__ import annotations

from launcher.cluster.status import ClusterStatus, DrafterStatus, LoadStatus, NodeStatus, ReplicaStatus
from launcher.cluster.status_tree import render

LOAD = LoadStatus(3, 2, 1.25, 100, 40, 900, 0.25, (DrafterStatus("ngram", 17, "shm", 3, 40, 10),))
FOUND = ClusterStatus(
    name="c",
    directory="h:50054",
    directory_error="",
    generation=2, wanted=2, least=1, most=3, settled=False,
    closing=False, failures=1, reason="no [such] file", notes=("replica 1 was lost: killed",),
    nodes=(NodeStatus("aaaaaaaa1", "h1", alive=True, cpus=2.0, gpus=1.0, off=True),),
    replicas=(
        ReplicaStatus(2, 2, "ready", 61.0, leaving=False, node="aaaaaaaa1", address="h1:9", metrics="h1:8",
                      process_id=5, gpus=("0",), model="m", build="0.1 cuda exact", load=LOAD),
        ReplicaStatus(3, 2, "starting", 1.0, leaving=False),
    ),
)  # fmt: skip


def test_nodes_replicas_drafters_load_and_hits_are_shown(capsys):
    render(FOUND)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in (
        "cluster c: 1 of 2 replicas serve (1 to 3 wanted), generation 2, changing", "directory h:50054",
        "node aaaaaaaa h1, 2 CPUs, 1 GPUs gets no replicas", "replica 2 h1:9 ready for 61 s, pid 5 GPU 0, generation 2",
        "model m, 0.1 cuda exact, metrics http://h1:8/metrics", "running 3, queued 2 for 1.2 s",
        "KV pages 40 of 100 free or evictable, cache hits 25% of prompt tokens", "drafter ngram pid 17 over shm",
        "accepted 10 (25%)", "without a node", "replica 3 starting for 1 s, waits for a place",
        "1 starts in a row have failed: no [such] file", "replica 1 was lost: killed",
    ):  # fmt: skip
        assert part in shown, part
